/* Pages that are opened from the disk may have no worker, which the search needs: it runs in a hidden frame instead. */
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      this.inside = frame.contentWindow
      window.addEventListener("message", event => {
        if (event.source !== this.inside) return
        const message = new MessageEvent("message", { data: event.data })
        this.dispatchEvent(message)
        if (this.onmessage) this.onmessage(message)
      })
      const inside = this.inside.document
      inside.open()
      this.loaded = new Promise(done => { this.inside.ready = done })
      inside.write(`<script>postMessage = data => parent.postMessage(data, "*")</script><script src="${url}"></script>`)
      inside.write("<script>ready()</script>")
      inside.close()
    }
    postMessage(data) {
      this.loaded.then(() => this.inside.dispatchEvent(new this.inside.MessageEvent("message", { data })))
    }
    terminate() {}
  }
