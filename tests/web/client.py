"""A client of the page that uses plain HTTP, as any program could."""

import io
import json

from PIL import Image


def make_png(width=48, height=32, color="teal"):
    out = io.BytesIO()
    Image.new("RGB", (width, height), color).save(out, "PNG")
    return out.getvalue()


def list_changed(values):
    """The values of an answer without those that leave a component as it is."""
    kept = ({"__type__": "update"}, {"__type__": "update", "props": {"__type__": "update"}})
    return [value for value in values if value not in kept]


class RefusedError(Exception):
    """The server answered with this error."""


class Client:
    def __init__(self, address):
        import httpx  # which Gradio brings

        self.http = httpx.Client(base_url=address, timeout=60, trust_env=False)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.http.close()

    def upload(self, content, name="photo.png", kind="image/png"):
        answer = self.http.post("/gradio_api/upload", files={"files": (name, content, kind)})
        answer.raise_for_status()
        (path,) = answer.json()
        return self.file(path)

    @staticmethod
    def file(path, **more):
        return {"path": path, "meta": {"_type": "gradio.FileData"}, **more}

    def call(self, name, *data):
        """Call an event and wait for its result."""
        joined = self.http.post(
            f"/gradio_api/call/{name}",
            content=json.dumps({"data": data}),  # as ASCII, whatever the text holds
            headers={"content-type": "application/json"},
        )
        if joined.status_code != 200:
            raise RefusedError(f"{joined.status_code}: {joined.text}")
        return self.wait(name, joined.json()["event_id"])

    def wait(self, name, event_id):
        event_type = None
        with self.http.stream("GET", f"/gradio_api/call/{name}/{event_id}") as lines:
            for line in lines.iter_lines():
                if line.startswith("event:"):
                    event_type = line.removeprefix("event:").strip()
                elif line.startswith("data:") and event_type in ("complete", "error"):
                    data = json.loads(line.removeprefix("data:"))
                    if event_type == "error":
                        raise RefusedError(str(data))
                    return data
        raise AssertionError("the server said nothing")
