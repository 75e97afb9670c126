"""What the server refuses, and what hostile uploads do to it: nothing."""

from __future__ import annotations

import gzip
import io
import json
import os
import signal
import socket
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path

import httpx
import pytest

from server_client import LONG_SEARCH, PREDICTION, Browser, RunningServer, put_until_answered, server

REPOSITORY = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    ("method", "path", "headers", "status"),
    [
        ("GET", "/", {"Host": "evil.example"}, 403),
        ("GET", "/api/start", {"Host": "evil.example:8023"}, 403),
        ("GET", "/", {"Host": "127.0.0.1.evil.example"}, 403),
        ("GET", "/", {"Host": ""}, 403),
        ("GET", "/", {"Host": "10.0.0.7"}, 403),
        ("GET", "/", {"Host": "["}, 403),
        ("GET", "/", {"Host": "evil.example@localhost"}, 403),
        ("GET", "/", {"Host": "localhost/evil.example"}, 403),
        ("POST", "/api/jobs", {"Origin": "ftp://127.0.0.1"}, 403),
        ("GET", "/", {"Host": "a]"}, 403),
        ("GET", "/api/history", {"Origin": "http://["}, 403),
        ("GET", "/", {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 200),
        ("GET", "/", {"Host": "localhost:9999"}, 200),
        ("GET", "/", {"Host": "[::1]:9999"}, 200),
        ("POST", "/api/jobs", {"X-Foretrace": ""}, 403),
        ("POST", "/api/jobs", {"Origin": "http://evil.example"}, 403),
        ("POST", "/api/jobs", {"Origin": "null"}, 403),
        ("POST", "/api/jobs", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("POST", "/api/jobs", {"Sec-Fetch-Site": "same-site"}, 403),
        ("GET", "/api/history", {"Sec-Fetch-Site": "cross-site"}, 403),
        ("DELETE", "/api/answers/" + "a" * 22, {"X-Foretrace": "0"}, 403),
        ("PUT", "/api/uploads/x/0", {"X-Foretrace": ""}, 403),
        ("GET", "/web/..%2fapp.py", {}, 404),
        ("GET", "/web/../app.py", {}, 404),
        ("GET", "/web/index.html", {}, 404),
        ("GET", "/etc/passwd", {}, 404),
        ("GET", "/api/jobs/..%2f..", {}, 404),
        ("PUT", "/api/uploads/x/" + "9" * 5000, {}, 404),
        ("PUT", "/api/uploads/x/-1", {}, 404),
        ("TRACE", "/api/start", {}, 405),
        ("POST", "/api/start", {}, 405),
    ],
)
def test_requests_from_elsewhere_are_refused(
    browser: Browser, method: str, path: str, headers: Mapping[str, str], status: int
) -> None:
    response = browser.http.request(method, path, headers=headers)
    assert response.status_code == status
    if status != 200:
        assert set(response.json()["error"]) == {"code", "message", "where", "hint"}
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_method_that_an_address_does_not_take_is_named_with_those_it_takes(browser: Browser) -> None:
    response = browser.http.put("/api/answers/" + "a" * 22)
    assert response.status_code == 405
    assert {word.strip() for word in response.headers["allow"].split(",")} == {"GET", "HEAD", "DELETE"}
    assert "PUT" in response.json()["error"]["message"]


def test_a_link_from_another_site_opens_the_page_of_the_same_owner(running: RunningServer) -> None:
    with httpx.Client(base_url=running.url) as http:
        background = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "image"}
        assert "set-cookie" not in http.get("/", headers=background).headers
        link = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}
        cookie = http.get("/", headers=link).headers["set-cookie"].lower()
        assert "samesite=lax" in cookie
        assert "httponly" in cookie
        assert "set-cookie" not in http.get("/", headers=link).headers


def test_the_own_origin_may_ask(browser: Browser, running: RunningServer) -> None:
    headers = {"Origin": running.url.rstrip("/"), "Sec-Fetch-Site": "same-origin"}
    assert browser.http.post("/api/jobs", json=PREDICTION, headers=headers).status_code == 200


def test_two_origins_are_refused(browser: Browser, running: RunningServer) -> None:
    headers = [("Origin", running.url.rstrip("/")), ("Origin", "http://evil.example"), ("X-Foretrace", "1")]
    assert browser.http.post("/api/jobs", json=PREDICTION, headers=headers).status_code == 403


@pytest.mark.parametrize("cookie", ["a" * 22, "a" * 22 + ".", "a" * 22 + "." + "0" * 64, "", "."])
def test_a_cookie_that_the_server_did_not_make_names_no_owner(running: RunningServer, cookie: str) -> None:
    with httpx.Client(base_url=running.url, headers={"Cookie": f"foretrace_owner={cookie}"}) as http:
        assert http.get("/api/history").status_code == 403
        assert "foretrace_owner" in http.get("/").cookies


@pytest.mark.parametrize("name", ["train.py", "TRAIN.PY", "a/b.py"])
def test_no_script_is_taken_or_run(browser: Browser, name: str) -> None:
    response = browser.http.post("/api/uploads", json={"names": ["job.txt", name]})
    assert response.json()["error"]["code"] == "script-not-run"
    assert "script" not in browser.http.get("/api/start").json()["fields"]


def test_uploads_that_cannot_be_opened_make_room(browser: Browser) -> None:
    for _ in range(25):
        assert browser.open_upload({"job.yaml": b"model: nothing-like-it\n"}).status_code == 422
    good = (REPOSITORY / "examples" / "moe_128gpu.txt").read_bytes()
    assert browser.open_upload({"moe.txt": good}).status_code == 200


def test_without_the_cookie_nothing_is_answered(running: RunningServer) -> None:
    with httpx.Client(base_url=running.url, headers={"X-Foretrace": "1"}) as http:
        assert http.post("/api/jobs", json=PREDICTION).json()["error"]["code"] == "request-refused"
        assert http.get("/api/history").status_code == 403


@pytest.mark.parametrize(
    ("body", "status", "code"),
    [
        (b"", 400, "bad-syntax"),
        (b"{", 400, "bad-syntax"),
        (b"\xff\xfe", 400, "bad-syntax"),
        (b"[" * 60000, 400, "bad-syntax"),
        (b'{"ask": NaN}', 400, "bad-syntax"),
        (b" " * 70000, 413, "input-too-large"),
        (b'"a"', 400, "bad-value"),
        (b'{"ask": "step", "input": {"model": "llama3-8b"}, "replaces": "x"}', 400, "bad-value"),
    ],
)
def test_bodies_that_are_no_questions(browser: Browser, body: bytes, status: int, code: str) -> None:
    response = browser.http.post("/api/jobs", content=body)
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)


def test_no_option_reaches_a_file(browser: Browser, tmp_path: Path) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("based_on: h100-dgx\nnodes: 64\nsecret_word: 1\n")
    texts = [str(secret), os.path.relpath(secret), "/etc/passwd", "/etc/*", "file:///etc/passwd", "~/.bashrc", "."]
    start = browser.http.get("/api/start").json()
    fields = [field for field in start["fields"]["model"] if field["kind"] != "flag"]
    for field in fields:
        for text in texts[:2]:
            value = [text] if field["kind"] == "list" else text
            question = {**PREDICTION, "options": {**PREDICTION["options"], field["name"]: value}}
            response = browser.http.post("/api/jobs", json=question)
            events = dict(browser.events(response.json()["job"]))
            assert "failed" in events, (field["name"], text)
            assert "secret_word" not in json.dumps(events)
    for text in texts:
        for where in ("machine", "scenario"):
            group = {"cluster": text} if where == "machine" else {"what_if": [f"cluster={text}"]}
            question = {**PREDICTION, where: {**PREDICTION["machine"], **group} if where == "machine" else group}
            assert browser.error(question)["code"] == "unknown-name"


@pytest.mark.parametrize(
    "text",
    [
        "model: llama3-8b\nplan: {gpus: 16, tp: 2, gbs: 16}\ncluster: SECRET\n",
        "model: SECRET\nplan: {gpus: 16}\ncluster: h100-dgx\n",
        "model: llama3-8b\nplan:\n  gpus: 16\n  gbs: 16\n  routing: SECRET\ncluster: h100-dgx\n",
    ],
)
def test_an_uploaded_job_reads_no_file_of_the_server(browser: Browser, tmp_path: Path, text: str) -> None:
    secret = tmp_path / "secret.yaml"
    secret.write_text("based_on: h100-dgx\nnodes: 64\nsecret_word: 1\n")
    response = browser.open_upload({"job.yaml": text.replace("SECRET", str(secret)).encode()})
    if response.status_code == 200:
        question = {"ask": "step", "input": {"upload": response.json()["upload"]}}
        error = browser.error(question)
    else:
        error = response.json()["error"]
    assert "secret_word" not in json.dumps(error)


def _zip() -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("trace.json", "0" * 10_000_000)
    return stream.getvalue()


BROKEN: dict[str, bytes] = {
    "empty.txt": b"",
    "noise.txt": bytes(range(256)) * 40,
    "zip.json": _zip(),
    "bomb.json.gz": gzip.compress(b'{"traceEvents": [' + b" " * 400_000_000),
    "nested.json": b"[" * 200_000,
    "cut.json.gz": gzip.compress(b'{"traceEvents": []}')[:-6],
    "broken.foretrace": b"FORETRACE" * 100,
    "wrong.answer": b"x" * 1000,
    "job.yaml": b"model: nothing-like-it\n",
    "laughs.yaml": b"a: &a [x,x]\nb: &b [*a,*a]\nc: &c [*b,*b]\nmodel: *c\n",
    "workload.txt": b"HYBRID_TRANSFORMER_FWD_IN_BCKWD model_parallel_NPU_group: 8 all_gpus: x\n1\n",
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_upload_has_the_message_of_the_command_line(
    browser: Browser, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from foretrace.basics.errors import ForetraceError
    from foretrace.inputs.registry import open_input

    response = browser.open_upload({name: BROKEN[name]})
    (tmp_path / name).write_bytes(BROKEN[name])
    monkeypatch.chdir(tmp_path)
    try:
        open_input([name]).inventory()
    except ForetraceError as error:
        if response.status_code == 200:  # saved answers are read when they are asked for
            failure = browser.error({"ask": "step", "input": {"upload": response.json()["upload"]}})
        else:
            assert response.status_code == 422
            failure = response.json()["error"]
        assert (failure["code"], failure["message"], failure["where"]) == (error.code, error.message, error.where)
    else:
        raise AssertionError("the file is not broken")
    assert "answer" in browser.ask(PREDICTION)


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("../../../etc/cron.d/evil.txt", "evil.txt"),
        ("..\\..\\evil.txt", "evil.txt"),
        ("/etc/passwd", "passwd"),
        ("...hidden.txt", "hidden.txt"),
        ("a\x00\x1b[31m.txt", "a_31m.txt"),
        ("-rf.txt", "_rf.txt"),
        ("", "file"),
        ("..", "file"),
        ("x" * 400 + ".json.gz", "x" * 97 + ".gz"),
        ("<img src=x onerror=alert(1)>.txt", "_img src=x onerror=alert_1__.txt"),
    ],
)
def test_names_of_uploads_are_harmless(browser: Browser, name: str, shown: str) -> None:
    content = (REPOSITORY / "examples" / "moe_fairseq_profile.txt").read_bytes()
    response = browser.open_upload({name: content})
    assert response.status_code == 200, response.text
    assert response.json()["title"] == shown
    answer = browser.answer({"ask": "step", "input": {"upload": response.json()["upload"]}})
    assert "<img" not in answer["html"]


@pytest.mark.parametrize("is_declared", [True, False])
def test_an_upload_that_is_too_large_is_refused_before_it_comes(browser: Browser, is_declared: bool) -> None:
    upload = browser.http.post("/api/uploads", json={"names": ["large.json"]}).json()["upload"]
    piece, max_bytes = bytes(1 << 20), 2 << 30
    status, sent_bytes = put_until_answered(
        browser, f"/api/uploads/{upload}/0", piece, max_bytes // len(piece), is_declared=is_declared
    )
    assert status == 413
    assert sent_bytes < max_bytes // 4
    assert browser.http.post(f"/api/uploads/{upload}/open").status_code == 422


def test_an_upload_has_a_limited_number_of_files_and_each_comes_once(browser: Browser) -> None:
    assert browser.http.post("/api/uploads", json={"names": ["a"] * 257}).status_code == 413
    assert browser.http.post("/api/uploads", json={"names": []}).status_code == 413
    assert browser.http.post("/api/uploads", json={"names": [1]}).status_code == 400
    upload = browser.upload({"a.txt": b"1", "A.txt": b"2"})
    assert browser.http.put(f"/api/uploads/{upload}/0", content=b"3").status_code == 400
    assert browser.http.put(f"/api/uploads/{upload}/2", content=b"3").status_code == 404
    assert browser.http.put(f"/api/uploads/{'a' * 22}/0", content=b"3").status_code == 404


def test_one_owner_cannot_fill_the_queue(browser: Browser, running: RunningServer) -> None:
    jobs, codes = [], set()
    for _ in range(60):
        response = browser.http.post("/api/jobs", json=LONG_SEARCH)
        if response.status_code == 200:
            jobs.append(response.json()["job"])
        else:
            codes.add(response.json()["error"]["code"])
    assert codes == {"too-many"}
    position = next(values for name, values in browser.events(jobs[-1]) if name == "queued")["position"]
    assert position > 1
    with Browser(running.url) as other:  # is answered while the searches of the other wait
        assert "answer" in other.ask(PREDICTION)
    for job in jobs:
        browser.http.post(f"/api/jobs/{job}/cancel")
    assert dict(browser.events(jobs[-1])).keys() >= {"cancelled"}


def test_a_killed_worker_fails_its_job_and_no_other(browser: Browser, running: RunningServer) -> None:
    job = browser.begin(LONG_SEARCH)
    next(values for name, values in browser.events(job) if name == "progress")
    # The first worker does no searches, and does not give way to others.
    workers = set(running.workers)
    searching = max(workers, key=lambda pid: os.getpriority(os.PRIO_PROCESS, pid))
    with Browser(running.url) as other:
        options = {"gpus": "16", "tp": "2", "pp": "4", "gbs": "64"}
        machine = {"cluster": "h100-dgx", "network": "flow"}
        events = other.events(other.begin({**PREDICTION, "options": options, "machine": machine}))
        next(values for name, values in events if name == "progress" or name == "quick")
        os.kill(searching, signal.SIGKILL)
        assert "answer" in dict(events)
    last, failure = list(browser.events(job))[-1]
    assert (last, failure.get("code")) == ("failed", "worker-died")
    assert workers - {searching} <= set(running.workers)
    assert "answer" in browser.ask(PREDICTION)


def test_answers_outlive_a_server_that_is_killed(tmp_path: Path) -> None:
    with server(tmp_path, "--workers", "2") as first, Browser(first.url) as browser:
        cookies = browser.http.cookies
        upload = browser.open_upload({"moe.txt": (REPOSITORY / "examples" / "moe_128gpu.txt").read_bytes()}).json()[
            "upload"
        ]
        question = {"ask": "step", "input": {"upload": upload}, "machine": {"cluster": "h100-dgx"}}
        browser.begin(LONG_SEARCH)
        answers = [browser.answer(PREDICTION), browser.answer(question)]
        first.kill()
    with server(tmp_path, "--workers", "1") as second, Browser(second.url) as browser:
        browser.http.cookies = cookies
        listed = browser.http.get("/api/history").json()["answers"]
        assert [answer["answer"] for answer in listed] == [answer["answer"] for answer in answers[::-1]]
        for answer in answers:
            assert browser.http.get(f"/api/answers/{answer['answer']}").json()["html"] == answer["html"]
        assert browser.answer(question)["summary"] == answers[1]["summary"]
        assert browser.http.put(f"/api/uploads/{upload}/0", content=b"3").status_code == 404


def test_another_interface_needs_a_token(tmp_path: Path) -> None:
    with server(tmp_path, "--workers", "1", "--host", "0.0.0.0") as process:
        address = httpx.URL(process.url)
        token = address.params["token"]
        base = f"http://127.0.0.1:{address.port}"
        with httpx.Client(base_url=base, headers={"X-Foretrace": "1"}) as http:
            for path in ("/", "/api/start", "/web/app.js", "/?token=wrong", f"/api/start?token={token}"):
                assert http.get(path).status_code == 403, path
            opened = http.get("/", params={"token": token})
            assert (opened.status_code, opened.headers["location"]) == (303, "/")
            assert "httponly" in opened.headers["set-cookie"].lower()
            assert http.get("/").status_code == 200
            assert http.post("/api/jobs", json=PREDICTION).status_code == 200
            assert http.get("/", headers={"Host": "evil.example"}).status_code == 403


def test_clients_that_disconnect_do_not_end_the_server(tmp_path: Path) -> None:
    with server(tmp_path, "--workers", "1") as process:
        url = httpx.URL(process.url)
        request = f"GET /web/app.js HTTP/1.1\r\nHost: {url.host}\r\n\r\n".encode()
        for number in range(100):
            with socket.create_connection((url.host, url.port or 80), 10) as connection:
                if number % 2:  # closing resets the connection
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                connection.sendall(request * 20)
        with Browser(process.url) as browser:
            assert "answer" in browser.ask(PREDICTION)
        assert process.process.poll() is None
