// The origin of the measurements, as a separate process: reads the body and answers immediately.
import { createServer } from "node:http";

const answer = JSON.stringify({ job: { id: 17, service: "analysis", status: "queued" }, quota: null });
const server = createServer((request, response) => {
  request.resume();
  request.on("end", () => {
    if (request.url === "/api/edge/counts") {
      response.writeHead(204).end();
      return;
    }
    response.writeHead(202, { "content-type": "application/json", "content-length": Buffer.byteLength(answer) });
    response.end(answer);
  });
});
server.keepAliveTimeout = 120_000;
server.listen(0, "127.0.0.1", () => process.send(server.address().port));
process.on("disconnect", () => process.exit());
