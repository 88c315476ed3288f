// Worker threads that allocate and check objects until the file named as first argument exists; prints every result that a round had.
const { createHash } = require("crypto");
const { existsSync } = require("fs");
const { Worker, isMainThread, parentPort, workerData } = require("worker_threads");

const WORKERS = 4;

function round(worker) {
  const hash = createHash("sha256");
  const objects = new Map();
  let value = worker + 1;
  for (let i = 0; i < 20000; i++) {
    value = (Math.imul(value, 1664525) + 1013904223) >>> 0;
    objects.set(`key ${value % 9973}`, { value, text: `${value}`.repeat(3), list: [i, value, value / 3] });
  }
  for (const [key, object] of objects) hash.update(key).update(object.text).update(String(object.list));
  const bytes = Buffer.alloc(1 << 18);
  for (let i = 0; i < bytes.length; i += 4) {
    value = (Math.imul(value, 1664525) + 1013904223) >>> 0;
    bytes.writeUInt32LE(value, i);
  }
  return hash.update(bytes).digest("hex");
}

if (isMainThread) {
  const results = new Set();
  let rounds = 0;
  let left = WORKERS;
  for (let number = 0; number < WORKERS; number++) {
    const worker = new Worker(__filename, { workerData: { number, stop: process.argv[2] } });
    worker.on("error", (error) => { throw error; });
    worker.on("message", (message) => {
      results.add(message);
      rounds += 1;
    });
    worker.on("exit", () => {
      left -= 1;
      if (left > 0) return;
      console.log([...results].sort().join("\n"));
      console.error(`rounds ${rounds}`);
    });
  }
} else {
  do parentPort.postMessage(`worker ${workerData.number}: ${round(workerData.number)}`);
  while (!existsSync(workerData.stop));
}
