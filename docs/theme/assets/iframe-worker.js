// Browsers start no worker on a page that was opened as a file; there, search runs in a hidden frame instead.
// (The name is the one that mkdocs-material looks for, so that it adds no script from elsewhere.)
if (location.protocol === 'file:') {
  window.Worker = class extends EventTarget {
    constructor(address) {
      super()
      const frame = document.createElement('iframe')
      frame.hidden = true
      document.documentElement.append(frame)
      this.scope = frame.contentWindow
      this.scope.postMessage = (data) => this.deliver(this, data)
      this.scope.importScripts = (...addresses) => Promise.all(addresses.map((each) => this.run(each)))
      this.ready = this.run(new URL(address, location.href))
    }
    run(address) {
      return new Promise((done, failed) => {
        const script = this.scope.document.createElement('script')
        Object.assign(script, { src: address, onload: done, onerror: failed })
        this.scope.document.documentElement.append(script)
      })
    }
    deliver(target, data) {
      const event = new MessageEvent('message', { data })
      target.dispatchEvent(event)
      target.onmessage?.(event)
    }
    postMessage(data) {
      this.ready.then(() => this.deliver(this.scope, data))
    }
    terminate() {
      this.scope.frameElement?.remove()
    }
  }
}
