// Until its last importers name the new file.
export * from "./paths.ts";
