// The Worker's entry point.
export { AddressCounter, worker as default } from "./weir.mjs";
