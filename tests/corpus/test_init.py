from __future__ import annotations

import subprocess
import sys

import nopad.corpus


def test_exported_names_are_sorted_public_and_real():
    names = nopad.corpus.__all__
    assert names == sorted(names, key=lambda name: (not name.isupper(), not name[0].isupper(), name))
    assert all(not name.startswith("_") and hasattr(nopad.corpus, name) for name in names)


def test_importing_the_room_loads_no_tokenizer_library():
    code = "import sys, nopad.corpus; sys.exit('tokenizers' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
