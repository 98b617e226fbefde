import pytest

from orchestrator.errors import STATUS, Code, SlipstreamError


def test_every_code_has_a_status() -> None:
    assert set(STATUS) == set(Code)
    assert all(400 <= status < 600 for status in STATUS.values())


def test_problem_is_rfc_9457() -> None:
    error = SlipstreamError(Code.CONFLICT, "no", hint="wait", details={"model": "a"})
    assert error.problem() == {
        "type": "urn:slipstream:error:conflict",
        "title": "conflict",
        "status": 409,
        "code": "conflict",
        "detail": "no",
        "hint": "wait",
        "model": "a",
    }


def test_details_cannot_hide_what_the_standard_names() -> None:
    problem = SlipstreamError(Code.CONFLICT, "no", details={"status": 200, "code": "x"}).problem()
    assert (problem["status"], problem["code"]) == (409, "conflict")


@pytest.mark.parametrize(
    "code, kind",
    [
        (Code.INVALID_REQUEST, "invalid_request_error"),
        (Code.MODEL_NOT_FOUND, "invalid_request_error"),
        (Code.UNAUTHORIZED, "authentication_error"),
        (Code.FORBIDDEN, "permission_error"),
        (Code.UPSTREAM_FAILED, "server_error"),
    ],
)
def test_openai_shape(code: Code, kind: str) -> None:
    error = SlipstreamError(code, "no", hint="try this")
    assert error.openai() == {"error": {"message": "no (try this)", "type": kind, "param": None, "code": str(code)}}


def test_headers() -> None:
    assert SlipstreamError(Code.CONFLICT, "no").headers == {}
    assert SlipstreamError(Code.SERVER_STOPPED, "no", retry_after_seconds=3).headers == {"retry-after": "3"}
    assert SlipstreamError(Code.UNAUTHORIZED, "no").headers == {"www-authenticate": "Bearer"}
