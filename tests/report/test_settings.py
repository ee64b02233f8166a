from __future__ import annotations

import pytest

from nopad.errors import OptionError
from nopad.report.settings import Settings


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"batch_size": 0}, "batch_size must be an integer from 1 to 1048576, got 0"),
        ({"rows_per_step": 2.5}, "rows_per_step must be an integer"),
        ({"gpus": 0, "tokens_per_second": 1}, "gpus must be an integer"),
        ({"tokens_per_second": 0}, "tokens_per_second must be a number above 0"),
        ({"tokens_per_second": -1.0}, "got -1.0"),
        ({"tokens_per_second": float("nan")}, "tokens_per_second must be a number above 0"),
        ({"tokens_per_second": float("inf")}, "tokens_per_second must be a number above 0"),
        ({"tokens_per_second": "9"}, "got '9'"),
        ({"tokens_per_second": 1, "watts": True}, "watts must be a number above 0"),
        ({"price_per_hour": 2}, "price_per_hour needs tokens_per_second: what one GPU computes"),
        ({"watts": 700}, "watts needs tokens_per_second"),
        ({"gpus": 8}, "gpus needs tokens_per_second"),
        ({"currency": "$", "tokens_per_second": 1}, "currency says what a price is in; give price_per_hour too"),
        ({"title": "  "}, "the title is empty"),
    ],
)
def test_refused(given, message):
    with pytest.raises(OptionError) as caught:
        Settings(**given)
    assert message in str(caught.value)


def test_taken():
    Settings(title="Ours", batch_size=1, rows_per_step=8, tokens_per_second=1e5, price_per_hour=2, watts=1, gpus=1)
