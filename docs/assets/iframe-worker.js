/* A browser starts no worker for a page that was opened from a disk. There the search runs in a
   hidden frame instead, which gets and sends the same messages. */
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      const waiting = [];
      frame.hidden = true;
      document.body.append(frame);
      const inside = frame.contentWindow;
      this.postMessage = (data) => waiting.push(data);
      inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      const script = inside.document.createElement("script");
      script.src = url;
      script.onload = () => {
        this.postMessage = (data) =>
          inside.dispatchEvent(new inside.MessageEvent("message", { data }));
        waiting.forEach((data) => this.postMessage(data));
      };
      inside.document.body.append(script);
    }
  };
  window.Worker = window.IFrameWorker;
}
