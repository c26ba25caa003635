// The service behind Restate in bench/compare: the minimum that answers a payment. It has no
// journaled step of its own, so the benchmark measures the best case of Restate's durable path.
//
// Usage: node restate-service.mjs PORT ADMIN_URL
// Listens, registers itself with Restate, and prints "ready" to standard output.

import { createServer } from "node:http2";
import * as restate from "@restatedev/restate-sdk";

const [port, admin] = process.argv.slice(2);
const RETRIES_MAX = 100;
const RETRY_PAUSE_MS = 100;

// The SDK requires a newer Node.js than some distributions have.
Promise.withResolvers ??= () => {
  const parts = {};
  parts.promise = new Promise((resolve, reject) => Object.assign(parts, { resolve, reject }));
  return parts;
};

const pay = restate.service({
  name: "Pay",
  handlers: {
    charge: async (_ctx, { amount, currency }) => ({ id: "pay_1", amount, currency }),
  },
});

// Restate's admin API is available a moment after its process starts.
async function register() {
  for (let attempt = 1; ; attempt += 1) {
    try {
      const response = await fetch(`${admin}/deployments`, {
        method: "POST",
        headers: { "content-type": "application/json" },
        body: JSON.stringify({ uri: `http://127.0.0.1:${port}` }),
      });
      if (response.ok) return;
      throw new Error(`Restate refused the service: ${response.status} ${await response.text()}`);
    } catch (error) {
      if (attempt === RETRIES_MAX) throw error;
      await new Promise((resume) => setTimeout(resume, RETRY_PAUSE_MS));
    }
  }
}

// Not `restate.serve`, which listens on every interface.
const server = createServer(restate.createEndpointHandler({ services: [pay] }));
server.listen(Number(port), "127.0.0.1");
await register();
console.log("ready");
