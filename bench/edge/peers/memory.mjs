// As Cloudflare's documentation has it: one object per address, which keeps its count in memory only. It forgets after ten
// seconds without requests, so that it does not do the same; it is here to show what not forgetting costs.
import { DurableObject } from "cloudflare:workers";
import minimal from "./minimal.mjs";

export class PerAddress extends DurableObject {
  end = 0;
  used = 0;

  take() {
    const now = Date.now();
    if (now >= this.end) {
      this.end = now + 60_000;
      this.used = 0;
    }
    const admitted = this.used < 10;
    if (admitted) this.used++;
    return { admitted, remaining: 10 - this.used, reset: this.end - now };
  }
}

export default minimal;
