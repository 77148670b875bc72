#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A small, strict S3 server with faults on demand: it recomputes every signature, checks every body's SHA-256 and misbehaves
when told to. Objects live in memory; there is a bucket "bucket", and one "denied" that nobody may use.

Prints the port. Then reads commands from stdin, a JSON object a line, and answers each with one line:
  {"fault": "status", "method": "PUT", "part": "uploadId", "count": 2, "status": 503, "code": "SlowDown"}
      the next `count` requests with this method, whose target contains `part`, fail:
      status  the answer is this status, with S3's error `code`
      error200  status 200 with an <Error> in its body
      drop    the connection is closed without an answer, nothing was done
      lost    the same, but the request was carried out
      cut     half of the answer's body comes, then the connection is closed
      short   the answer is complete, but holds half of the bytes
      stall   half of the answer's body comes, then nothing more
      endless the answer's body never ends
      hold    nothing happens until {"ask": "release"}
  {"ask": "uploads"}    number of multipart uploads that are open
  {"ask": "held"}       waits for a request that is held
  {"ask": "release"}    lets held requests go on; answers how many were held so far
  {"ask": "requests"}   list of "METHOD target" since the last time
"""
import hashlib
import hmac
import http.server
import json
import select
import sys
import threading
import urllib.parse

ACCESS_KEY, SECRET_KEY, REGION, TOKEN = "TESTKEY", "test/secret+key", "eu-test-1", "session//token=="
PAGE = 3  # objects on a page of a listing

lock = threading.RLock()
objects, uploads, faults, requests = {}, {}, [], []
held, holding, released = [], threading.Event(), threading.Event()


def quote(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-_.~")


def sign(key, text):
    return hmac.new(key, text.encode(), hashlib.sha256).digest()


class Refused(Exception):
    def __init__(self, status, code, text="", extra=""):
        super().__init__(code)
        self.status, self.code, self.text, self.extra = status, code, text or code, extra


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    timeout = 30

    def log_message(self, *_):
        pass

    def serve(self):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with lock:
            requests.append(f"{self.command} {self.path}")
            fault = self.take_fault()
        kind = fault.get("fault")
        if kind == "drop":
            self.close_connection = True
            return
        if kind == "hold":
            held.append(self.path)
            holding.set()
            released.wait()
        try:
            if kind == "status":
                raise Refused(fault["status"], fault.get("code", "Broken"))
            if kind == "error200":
                raise Refused(200, fault.get("code", "InternalError"))
            with lock:
                self.check_signature(body)
                status, headers, answer = self.answer(body)
        except Refused as refused:
            status, headers = refused.status, {"Content-Type": "application/xml"}
            answer = (f"<?xml version='1.0'?><Error><Code>{refused.code}</Code><Message>{refused.text}</Message>"
                      f"{refused.extra}</Error>").encode()
        if kind == "lost":
            self.close_connection = True
            return
        self.send(status, headers, answer, kind)

    do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = serve

    def take_fault(self):
        for fault in faults:
            if fault["count"] > 0 and fault["method"] == self.command and fault.get("part", "") in self.path:
                fault["count"] -= 1
                return fault
        return {}

    def send(self, status, headers, answer, kind):
        half = answer[:len(answer) // 2]
        if kind == "short":
            answer = half
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if kind == "endless":
            self.send_header("Transfer-Encoding", "chunked")
        elif "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command == "HEAD":
            return
        try:
            if kind == "endless":
                while True:
                    self.wfile.write(b"10000\r\n" + b"x" * 0x10000 + b"\r\n")
            self.wfile.write(half if kind in ("cut", "stall") else answer)
            self.wfile.flush()
            if kind == "stall":
                select.select([self.connection], [], [])  # until the client gives up
        except OSError:
            pass
        if kind in ("cut", "stall", "endless"):
            self.close_connection = True

    def check_signature(self, body):
        scheme, _, rest = self.headers.get("Authorization", "").partition(" ")
        fields = dict(field.strip().split("=", 1) for field in rest.split(",")) if rest else {}
        if scheme != "AWS4-HMAC-SHA256":
            raise Refused(403, "AccessDenied", "not signed")
        key, date, region, service, end = fields["Credential"].split("/")
        if key != ACCESS_KEY:
            raise Refused(403, "InvalidAccessKeyId", "no such key")
        if region != REGION:
            raise Refused(400, "AuthorizationHeaderMalformed", "wrong region", f"<Region>{REGION}</Region>")
        path, _, query = self.path.partition("?")
        pairs = []
        for pair in query.split("&") if query else []:
            name, _, value = pair.partition("=")
            pairs.append((quote(urllib.parse.unquote(name)), quote(urllib.parse.unquote(value))))
        signed = fields["SignedHeaders"].split(";")
        digest = self.headers.get("x-amz-content-sha256", "")
        if "host" not in signed or "x-amz-content-sha256" not in signed or "x-amz-date" not in signed:
            raise Refused(403, "SignatureDoesNotMatch", "a header must be signed")
        token = self.headers.get("x-amz-security-token")
        if token is not None and (token != TOKEN or "x-amz-security-token" not in signed):
            raise Refused(403, "InvalidToken", "wrong or unsigned token")
        if any(name not in self.headers for name in signed):
            raise Refused(403, "SignatureDoesNotMatch", "a signed header was not sent")
        canonical = "\n".join([
            self.command, quote(urllib.parse.unquote(path), "/"), "&".join(f"{n}={v}" for n, v in sorted(pairs)),
            "".join(f"{name}:{' '.join(self.headers[name].split())}\n" for name in signed), ";".join(signed), digest])
        text = "\n".join(["AWS4-HMAC-SHA256", self.headers["x-amz-date"], "/".join([date, region, service, end]),
                          hashlib.sha256(canonical.encode()).hexdigest()])
        secret = ("AWS4" + SECRET_KEY).encode()
        for part in (date, region, service, end):
            secret = sign(secret, part)
        if sign(secret, text).hex() != fields["Signature"]:
            raise Refused(403, "SignatureDoesNotMatch", "the signature is another one")
        if hashlib.sha256(body).hexdigest() != digest:
            raise Refused(400, "XAmzContentSHA256Mismatch", "the body is another one")

    def answer(self, body):
        path, _, query = self.path.partition("?")
        bucket, _, key = urllib.parse.unquote(path).lstrip("/").partition("/")
        query = dict(urllib.parse.parse_qsl(query, keep_blank_values=True))
        if bucket == "denied":
            raise Refused(403, "AccessDenied", "Access Denied")
        if bucket != "bucket":
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist")
        if not key:
            return self.list(query)
        if self.command == "POST" or "uploadId" in query:
            return self.multipart(key, query, body)
        if self.command == "PUT":
            objects[key] = body
            return 200, {"ETag": self.etag(body)}, b""
        if self.command == "DELETE":
            objects.pop(key, None)
            return 204, {}, b""
        if key not in objects:
            raise Refused(404, "NoSuchKey", "The specified key does not exist")
        return self.read(objects[key])

    @staticmethod
    def etag(body):
        return f'"{hashlib.md5(body).hexdigest()}"'

    def read(self, content):
        etag = self.etag(content)
        if self.headers.get("If-Match", etag) != etag:
            raise Refused(412, "PreconditionFailed")
        if self.command == "HEAD":
            return 200, {"ETag": etag, "Content-Length": str(len(content))}, b""
        if "Range" in self.headers:
            first, last = (int(number) for number in self.headers["Range"].removeprefix("bytes=").split("-"))
            if first >= len(content):
                raise Refused(416, "InvalidRange")
            return 206, {"ETag": etag, "Content-Range": f"bytes {first}-{last}/{len(content)}"}, content[first:last + 1]
        return 200, {"ETag": etag}, content

    @staticmethod
    def list(query):
        keys = sorted(key for key in objects if key.startswith(query.get("prefix", "")))
        start = int(query.get("continuation-token", "0"))
        page = keys[start:start + PAGE]
        more = start + PAGE < len(keys)
        items = "".join(f"<Contents><Key>{key.replace('&', '&amp;')}</Key><Size>{len(objects[key])}</Size></Contents>"
                        for key in page)
        token = f"<NextContinuationToken>{start + PAGE}</NextContinuationToken>" if more else ""
        return 200, {}, (f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{items}{token}"
                         "</ListBucketResult>").encode()

    def multipart(self, key, query, body):
        if "uploads" in query:
            upload = f"{len(uploads) + 1}/a+b="
            uploads[upload] = {}
            return 200, {}, (f"<InitiateMultipartUploadResult><UploadId>{upload}</UploadId>"
                             "</InitiateMultipartUploadResult>").encode()
        if uploads.get(query["uploadId"]) is None:
            raise Refused(404, "NoSuchUpload", "The upload ended before")
        parts = uploads[query["uploadId"]]
        if self.command == "PUT":
            parts[int(query["partNumber"])] = body
            return 200, {"ETag": self.etag(body)}, b""
        uploads[query["uploadId"]] = None
        if self.command == "DELETE":
            return 204, {}, b""
        numbers = sorted(parts)
        if any(len(parts[number]) < 5 << 20 for number in numbers[:-1]):
            raise Refused(400, "EntityTooSmall", "a part is smaller than 5 MiB")
        for number in numbers:
            wanted = f"<PartNumber>{number}</PartNumber><ETag>{self.etag(parts[number])}</ETag>"
            if wanted not in body.decode().replace("&quot;", '"'):
                raise Refused(400, "InvalidPart", "a part is missing")
        objects[key] = b"".join(parts[number] for number in numbers)
        return 200, {}, b"<CompleteMultipartUploadResult/>"


def main():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    print(server.server_port, flush=True)
    for line in sys.stdin:
        command = json.loads(line)
        if command.get("ask") == "held":
            holding.wait()
        with lock:
            if command.get("ask") == "uploads":
                answer = sum(parts is not None for parts in uploads.values())
            elif command.get("ask") == "held":
                answer = len(held)
            elif command.get("ask") == "release":
                released.set()
                answer = len(held)
            elif command.get("ask") == "requests":
                answer = list(requests)
                requests.clear()
            else:
                faults[:] = [command]
                answer = "ok"
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
