from core.people.throttle import MOST_REMEMBERED, WINDOW_S, SignInThrottle


def test_five_failures_from_one_address_make_that_pair_wait_and_nobody_else() -> None:
    throttle = SignInThrottle()
    for second in range(5):
        assert throttle.wait("ann", "10.0.0.1", second) == 0
        throttle.failed("ann", "10.0.0.1", second)
    assert throttle.wait("ann", "10.0.0.1", 10) == WINDOW_S - 10
    assert throttle.wait("ann", "10.0.0.2", 10) == 0
    assert throttle.wait("bob", "10.0.0.1", 10) == 0
    assert throttle.wait("ann", "10.0.0.1", WINDOW_S) == 0


def test_one_address_that_tries_many_names_waits() -> None:
    throttle = SignInThrottle()
    for number in range(20):
        throttle.failed(f"name{number}", "10.0.0.1", 0)
    assert throttle.wait("fresh", "10.0.0.1", 1) > 0
    assert throttle.wait("fresh", "10.0.0.2", 1) == 0


def test_one_account_tried_from_many_addresses_waits() -> None:
    throttle = SignInThrottle()
    for number in range(50):
        throttle.failed("ann", f"10.0.0.{number}", 0)
    assert throttle.wait("ann", "10.0.1.1", 1) > 0


def test_a_success_takes_its_own_attempt_back_and_forgets_the_typos() -> None:
    throttle = SignInThrottle()
    for _ in range(100):
        throttle.failed("ann", "10.0.0.1", 0)
        throttle.succeeded("ann", "10.0.0.1")
    assert throttle.wait("ann", "10.0.0.1", 1) == 0
    assert throttle.wait("bob", "10.0.0.1", 1) == 0


def test_what_is_remembered_is_bounded() -> None:
    throttle = SignInThrottle()
    for number in range(MOST_REMEMBERED):
        throttle.failed(f"n{number}", f"a{number}", 0)
    assert len(throttle._failures) == MOST_REMEMBERED
