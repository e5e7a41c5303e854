import { fetchDocument } from "./api.ts";

/** The parts of an OpenAPI 3.1 document that the page reads. */
export interface OpenApi {
  info: { title: string; version: string; description?: string };
  paths: Record<string, Record<string, Operation>>;
  components?: { schemas?: Record<string, Schema> };
}

export interface Operation {
  summary?: string;
  description?: string;
  parameters?: { name: string; in: string; required?: boolean; description?: string; schema?: Schema }[];
  requestBody?: { description?: string; content: Record<string, { schema?: Schema }> };
  responses: Record<string, { description?: string; content?: Record<string, { schema?: Schema }> }>;
}

export interface Schema {
  $ref?: string;
  type?: string | string[];
  format?: string;
  description?: string;
  enum?: string[];
  items?: Schema;
  oneOf?: Schema[];
  properties?: Record<string, Schema>;
  required?: string[];
}

let document: Promise<OpenApi> | undefined;

/** The server's description of its API, requested once. */
export function openApi(): Promise<OpenApi> {
  document ??= fetchDocument<OpenApi>("/api/openapi.json").catch((error: unknown) => {
    document = undefined;
    throw error;
  });
  return document;
}
