"""What the tests of corpora share: a small text, archives, a server."""

import hashlib
import io
import tarfile
import threading
import zipfile
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from multint.paper.sources import File

TEXT = ("It was the best of times, it was the worst of times. " * 40).encode()


def sum_of(content):
    return hashlib.sha256(content).hexdigest()


def a_file(name="small", content=TEXT, *addresses, **more):
    return File(name, len(content), sum_of(content), addresses, **more)


def zipped(members):
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return out.getvalue()


def tarred(members):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w:gz") as tar:
        for name, content in members.items():
            info = tarfile.TarInfo(name)
            info.size = len(content)
            tar.addfile(info, io.BytesIO(content))
    return out.getvalue()


def leftovers(folder):
    return [p.name for p in folder.rglob("*") if "partial" in p.name or p.name == "raw" or p.name.endswith(".part")]


class Server:
    """Serves ``content`` by path; can stop short, ignore ranges, or send something else."""

    def __init__(self, content):
        self.content, self.cut, self.ranges, self.asked = content, None, True, []

    @contextmanager
    def running(self):
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                server.asked.append((self.path, self.headers.get("Range")))
                content = server.content.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                wanted = self.headers.get("Range") if server.ranges else None
                first = int(wanted.removeprefix("bytes=").removesuffix("-")) if wanted else 0
                if first >= len(content):
                    self.send_error(416)
                    return
                self.send_response(206 if wanted else 200)
                self.send_header("Content-Length", str(len(content) - first))
                self.end_headers()
                self.wfile.write(content[first : server.cut])

            def log_message(self, *args):
                pass

        http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        self.url = f"http://127.0.0.1:{http.server_port}"
        try:
            yield self
        finally:
            http.shutdown()
            thread.join()
            http.server_close()
