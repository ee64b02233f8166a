from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from nopad.seal import SEAL, sealed, unsealed

VALUES = st.none() | st.booleans() | st.integers() | st.text(max_size=5)


@given(st.dictionaries(st.text(max_size=3) | st.just(SEAL), VALUES, max_size=5))
def test_any_document_can_be_sealed_and_sealed_again(document):
    content = {name: value for name, value in document.items() if name != SEAL}
    assert unsealed(sealed(document)) == content
    assert sealed(sealed(document)) == sealed(content)
    assert unsealed(json.loads(json.dumps(sealed(document)))) == content


def test_a_change_is_noticed():
    changed = sealed({"a": 1}) | {"a": 2}
    with pytest.raises(ValueError, match="does not have the checksum"):
        unsealed(changed)
    assert unsealed(sealed(changed)) == {"a": 2}
