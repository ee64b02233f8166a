"""Verdicts as JUnit XML: counts, messages, and text that XML cannot hold, read back by a parser."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

import transformers as t
from hypothesis import given
from hypothesis import strategies as st
from stepped import texts
from zoo import build

import nopad
from nopad.auditing import Check, Verdict

FLATTENING = t.DataCollatorWithFlattening(return_tensors="pt")


def read(text):
    """The one suite of a report, after checks of what every reader counts on."""
    top = ElementTree.fromstring(text.encode())
    [suite] = top
    assert (top.tag, suite.tag) == ("testsuites", "testsuite")
    cases = suite.findall("testcase")
    for kind, name in (("failure", "failures"), ("error", "errors")):
        assert int(suite.get(name)) == int(top.get(name)) == len(suite.findall(f"testcase/{kind}"))
    assert int(suite.get("tests")) == int(top.get("tests")) == len(cases)
    assert all(case.get("name") and case.get("classname") == suite.get("name") for case in cases)
    return suite, cases


def test_a_pass():
    verdict = nopad.audit(build("bert"), capacity=16, gradients=False)
    suite, cases = read(verdict.to_junit())
    assert [case.get("name") for case in cases] == [check.name for check in verdict.checks]
    assert suite.get("failures") == suite.get("errors") == "0"
    assert suite.get("name") == "BertModel, nopad, backend 'auto'"
    assert suite.find("system-out").text == str(verdict)


def test_a_failure_of_each_check():
    verdict = nopad.audit(build("bert"), collator=FLATTENING, capacity=16, gradients=False)
    _, cases = read(verdict.to_junit())
    failed = {case.get("name"): case.find("failure") for case in cases if case.find("failure") is not None}
    assert list(failed) == [check.name for check in verdict.checks if not check.passed] != []
    message = failed["float64 poison, other tokens"].get("message")
    assert message.endswith("its neighbours, bit for bit")
    assert ", at most 0: sequence " in message


def test_an_exception_is_an_error():
    model = build("bert")
    model.register_forward_pre_hook(lambda module, args: 1 / 0)
    suite, cases = read(nopad.audit(model, capacity=16).to_junit())
    assert (suite.get("failures"), suite.get("errors")) == ("0", "1")
    error = cases[0].find("error")
    assert error.get("type") == "ZeroDivisionError"
    assert "division by zero" in error.get("message")


def test_a_step():
    model = nopad.packed(build("llama", "causal LM"))
    collate = lambda features: nopad.PackedBatch.from_features(features, causal=True)  # noqa: E731
    read(nopad.audit_step(model, texts(), collate).to_junit())
    verdict = nopad.audit_step(model, texts(), collate, lambda model, batch, step: model(**batch).loss / 2)
    _, cases = read(verdict.to_junit())
    [case] = [case for case in cases if case.get("name") == "mean of means"]
    assert case.find("failure").get("message") == verdict.findings[0].text


@given(st.text(st.characters(exclude_categories=())), st.floats(allow_nan=True), st.booleans())
def test_any_text_and_number_can_be_read_back(text, value, passed):
    check = Check(name="x" + text, passed=passed, value=value, limit=0.0, detail=text)
    verdict = Verdict(
        isolated=passed, max_abs_diff=value, first_difference=None, model=text, how="", checks=[check, replace(check)]
    )
    suite, _ = read(verdict.to_junit())
    assert suite.get("failures") == str(0 if passed else 2)
