import { generateApiTypes } from "./lib/api-types.ts";
import { runMain } from "./lib/lifecycle.ts";

await runMain(generateApiTypes);
