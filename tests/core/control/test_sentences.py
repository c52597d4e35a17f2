"""Every reason has a sentence that a person understands, with the numbers in it."""

import math
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import pytest

from core.control.decisions import Trigger
from core.control.limits import LimitConfig
from core.control.reasons import Reason
from core.control.sentences import Facts, Scene, sentence
from core.quotas import Bounds, Hold

AT = datetime(2026, 3, 2, 13, 30, tzinfo=UTC)
SCENE = Scene(
    at=AT,
    now=1000.0,
    limit=39.0,
    quota=28,
    shadow_quota=28,
    interactive=8,
    interactive_waiting=2,
    batch=31,
    backlog=100,
    bounds=Bounds(1, 63),
    config=LimitConfig(),
)
TRIGGERS = (
    Trigger("provider_429", 2.0, 1.0, 2),
    Trigger("errors", 0.05, 0.02, 60),
    Trigger("batch_errors", 4.0, 3.0, 4),
    Trigger("first_token", 1.12, 0.95, 63),
    Trigger("per_token", 1.12, 0.95, 63),
    Trigger("live_tokens", 0.93, 0.9, 39),
    Trigger("backend_queue", 3.0, 1.0, 31),
)


def facts(reason: Reason, scene: Scene = SCENE, **more: Any) -> Facts:
    given: dict[str, Any] = {
        "limit": (44.0, 39.0),
        "quota": (33, 28),
        "triggers": TRIGGERS,
        "cut_from": 44.0,
        "wait": 10.0,
    }
    return Facts(reason=reason, scene=scene, **(given | more))


def calm(**ratios: float) -> tuple[Trigger, ...]:
    return tuple(Trigger(name, value, 0.95, 40) for name, value in ratios.items())


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_with_a_number_or_a_cause(reason: Reason) -> None:
    text = sentence(facts(reason))
    assert text.endswith(".")
    assert text[0].isupper()
    assert len(text) > 20
    assert not {"None", "nan", "inf", "{", "}"} & set(text.replace(",", " ").replace(".", " ").split())


@pytest.mark.parametrize("reason", Reason)
def test_every_reason_has_a_sentence_without_any_data_or_with_absurd_data(reason: Reason) -> None:
    nothing = facts(reason, triggers=(), limit=(0.0, 0.0), quota=(0, 0), cut_from=0.0, wait=0.0)
    assert sentence(nothing).endswith(".")
    absurd = tuple(Trigger(t.name, 1e6, t.threshold, t.n) for t in TRIGGERS)
    assert "nan" not in sentence(facts(reason, triggers=absurd, slow_start=1e-9, age=math.pi, saved=1e5))


@pytest.mark.parametrize(
    ("reason", "text"),
    [
        (
            Reason.PER_TOKEN,
            "Limit 44 -> 39: p95 time per token of 63 interactive requests is 84 ms, budget 75 ms (112 %). "
            "Batch quota 33 -> 28, drains without aborts; next check after 10 s of calm.",
        ),
        (
            Reason.FIRST_TOKEN,
            "Limit 44 -> 39: p95 time to first token of 63 interactive requests is 1.12 s, budget 1.00 s (112 %). "
            "Batch quota 33 -> 28, drains without aborts; next check after 10 s of calm.",
        ),
        (
            Reason.PROVIDER_429,
            "Limit 44 -> 39: the provider refused 2 requests at 39 in flight. "
            "Batch quota 33 -> 28, drains without aborts; probing near 44 again slowly for 10 min.",
        ),
        (
            Reason.ERRORS,
            "Limit 44 -> 39: 3 of 60 interactive requests failed (5.0 %), budget 2.0 %. "
            "Batch quota 33 -> 28, drains without aborts; next check after 10 s of calm.",
        ),
        (Reason.INTERACTIVE_CHANGED, "Quota 33 -> 28 because interactive went 8 -> 14; limit unchanged at 39."),
        (Reason.SETTLING, "Not moving: the server settles after a change; next check in 10 s."),
        (
            Reason.NO_BATCH,
            "Not cutting: p95 of the first token is at 112 % of its budget, but no batch is in flight: "
            "a lower limit would relieve nobody.",
        ),
        (
            Reason.BATCH_BEGINS,
            "Not cutting: p95 of the first token is at 112 % of its budget, but batch has just begun after a rest, "
            "its first prompts all at once; it is judged after 10 s.",
        ),
    ],
)
def test_sentences_name_the_figure_the_budget_and_what_comes_next(reason: Reason, text: str) -> None:
    assert sentence(facts(reason, demand=(8, 14))) == text


def test_the_live_gap_names_its_own_threshold() -> None:
    assert "streams is 70 ms, budget 75 ms (93 %); cuts above 90 %." in sentence(facts(Reason.LIVE_TOKENS))


def test_the_dead_band_names_where_it_grows_and_where_it_cuts() -> None:
    quiet = facts(Reason.DEAD_BAND, triggers=calm(first_token=0.4, per_token=0.91))
    assert sentence(quiet) == "Not moving: p95 per token at 91 % of its budget; grows below 86 %, cuts above 95 %."
    quiet = facts(Reason.DEAD_BAND_LIVE, triggers=calm(live_tokens=0.85))
    assert "at 85 % of its budget; grows below 81 %, cuts above 90 %." in sentence(quiet)


def test_few_samples_are_named_with_what_a_cut_needs() -> None:
    few = (Trigger("first_token", 1.5, 0.95, 2), Trigger("per_token", None, 0.95, 0))
    text = "Not moving: p95 of the first token at 150 % of its budget, but over only 2 requests. "
    assert sentence(facts(Reason.FEW_SAMPLES, triggers=few)) == text + "A cut needs 20, or 3 of which most are late."


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"backlog": 0, "batch": 6, "quota": 20}, "Not raising: batch uses 6 of 20 slots, the queue is empty."),
        ({"paused": True}, "Not raising: batch is paused."),
        (
            {"quota": 14, "batch": 14, "bounds": Bounds(1, 14, source="window:Peak")},
            "Not raising: batch uses 14 of 14 slots; the ceiling of 14 (window Peak) is what stops batch.",
        ),
        (
            {"hold": Hold(40, None, "ann", "", AT), "shadow_quota": 22},
            "Not raising: Held at 40 by ann without end; the controller would give 22.",
        ),
        ({"batch": 1}, "Not raising: batch uses 1 of 28 slots; something other than the limit stops batch."),
    ],
)
def test_a_limit_that_does_not_bind_names_what_does(changes: dict[str, Any], text: str) -> None:
    assert sentence(facts(Reason.NOT_BINDING, replace(SCENE, **changes))) == text


def test_under_a_hold_the_sentence_tells_what_the_controller_would_do_in_local_time() -> None:
    hold = Hold(40, AT + timedelta(minutes=30), "ann", "", AT)
    held = replace(SCENE, hold=hold, shadow_quota=22, quota=40, zone=ZoneInfo("Europe/Berlin"))
    text = sentence(facts(Reason.PER_TOKEN, held, quota=(40, 40)))
    assert "Held at 40 by ann until 15:00, so the quota stays; the controller would give 22;" in text


def test_where_models_have_budgets_of_their_own_only_shares_are_named() -> None:
    text = sentence(facts(Reason.PER_TOKEN, replace(SCENE, mixed=True)))
    assert "p95 time per token of 63 interactive requests is at 112 % of the models' budgets." in text


def test_growth_names_the_worst_signal_and_is_plain_about_having_none() -> None:
    triggers = calm(first_token=0.61, per_token=0.3)
    text = sentence(facts(Reason.ADDITIVE, limit=(38.0, 42.0), quota=(24, 28), triggers=triggers))
    why = "batch has work and p95 of the first token at 61 % of its budget"
    assert text == f"Limit 38 -> 42: {why}. Batch quota 24 -> 28."
    assert "no interactive request is in sight" in sentence(facts(Reason.ADDITIVE, triggers=()))
    assert "slowly near 44, the level of the last cut" in sentence(facts(Reason.PLATEAU))
    assert "fast up to 60" in sentence(facts(Reason.SLOW_START, slow_start=60.0))


def test_one_request_is_not_many() -> None:
    one = (Trigger("provider_429", 1.0, 1.0, 1),)
    assert "refused 1 request at" in sentence(facts(Reason.PROVIDER_429, triggers=one))


def test_a_quota_that_cannot_fall_further_is_told_so() -> None:
    text = sentence(facts(Reason.ERRORS, limit=(1.0, 1.0), quota=(1, 1)))
    assert text.startswith("Limit stays at 1: ")
    assert "Batch quota stays at 1;" in text
