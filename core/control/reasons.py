"""The words of the decision log: what was done, and why. The values are stored and part of the interface."""

from enum import StrEnum


class Action(StrEnum):
    """What a decision did."""

    CUT = "cut"
    GROW = "grow"
    HOLD = "hold"
    SET = "set"
    WINDOW = "window"
    START = "start"


class Reason(StrEnum):
    """Why the controller moved, did not move, or what befell it."""

    # cuts, each also the name of its trigger
    PROVIDER_429 = "provider_429"
    ERRORS = "errors"
    BATCH_ERRORS = "batch_errors"
    FIRST_TOKEN = "first_token"
    PER_TOKEN = "per_token"
    LIVE_TOKENS = "live_tokens"
    BACKEND_QUEUE = "backend_queue"
    # growth
    SLOW_START = "slow_start"
    ADDITIVE = "additive"
    PLATEAU = "plateau"
    # no move
    CLOCK_BACK = "clock_back"
    GAP = "gap"
    DRAINING = "draining"
    SETTLING = "settling"
    NO_BATCH = "no_batch"
    BATCH_BEGINS = "batch_begins"
    NOT_BINDING = "not_binding"
    DEAD_BAND = "dead_band"
    DEAD_BAND_LIVE = "dead_band_live"
    FEW_SAMPLES = "few_samples"
    NO_SIGNAL = "no_signal"
    AT_SLOTS = "at_slots"
    FIXED = "fixed"
    POISONED_BATCH = "poisoned_batch"
    # what moves the quota while the limit stands
    INTERACTIVE_CHANGED = "interactive_changed"
    WINDOW_OPENED = "window_opened"
    WINDOW_CLOSED = "window_closed"
    HOLD_EXPIRED = "hold_expired"
    # starts
    RESUMED = "resumed"
    COLD_START = "cold_start"
