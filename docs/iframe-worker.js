/* Browsers start no worker for a page that was opened from a disk. There, a hidden frame runs the
   worker's script instead, so that search works without a server. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.append(frame);
      const inner = frame.contentWindow;
      inner.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.waiting = [];
      this.send = (data) => this.waiting.push(data);
      const script = inner.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.send = (data) => inner.dispatchEvent(new MessageEvent("message", { data }));
        this.waiting.forEach(this.send);
      };
      inner.document.body.append(script);
    }
    postMessage(data) {
      this.send(data);
    }
    terminate() {}
  };
  window.Worker = window.IFrameWorker;
}
