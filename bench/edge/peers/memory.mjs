// As in Cloudflare's documentation: one object per address, which keeps its count in memory only. It forgets the count
// after ten seconds without requests. So it does less than Weir, and shows what durable counts cost.
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
