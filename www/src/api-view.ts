import { type OpenApi, type Operation, openApi, type Schema } from "./api-document.ts";
import { element, make } from "./elements.ts";
import { showProblem } from "./notice.ts";
import { type Key, onLanguage, t } from "./text.ts";

/** Renders the server's OpenAPI document. Its text is always English. */

const place = element("document", HTMLElement);
const methods = ["get", "post", "put", "patch", "delete"] as const;
/** Who calls the routes of a prefix. The first that matches decides. */
const callers: { prefix: string; title: Key }[] = [
  { prefix: "/api/dev/", title: "developmentRoutes" },
  { prefix: "/api/", title: "userRoutes" },
  { prefix: "/admin/", title: "backendRoutes" },
  { prefix: "/worker/", title: "workerRoutes" },
];
let shown: OpenApi | undefined;

onLanguage(() => {
  if (shown) write(shown);
});

export async function showDocument(): Promise<void> {
  if (shown) return;
  try {
    shown = await openApi();
    write(shown);
  } catch (error) {
    showProblem(error);
  }
}

function write(document: OpenApi): void {
  const paths = Object.entries(document.paths).toSorted(([a], [b]) => rank(a) - rank(b) || (a < b ? -1 : 1));
  const groups = callers.flatMap(({ prefix, title }) => {
    const own = paths.filter(([path]) => callers.find((caller) => path.startsWith(caller.prefix))?.prefix === prefix);
    const routes = own.flatMap(([path, operations]) =>
      methods.flatMap((method) => {
        const operation = operations[method];
        return operation ? [route(method, path, operation)] : [];
      }),
    );
    return routes.length > 0 ? [make("h3", t(title)), ...routes] : [];
  });
  const types = Object.entries(document.components?.schemas ?? {}).map(([name, schema]) => type(name, schema));
  place.replaceChildren(...groups, make("h3", t("types")), ...types);
}

/** Jobs come first. */
function rank(path: string): number {
  return path.startsWith("/api/jobs") ? 0 : 1;
}

/**
 * The path with the name of a service where the document has one. The document calls both `{id}`, because OpenAPI does
 * not distinguish paths by the names of parameters.
 */
function shownPath(path: string, { parameters = [] }: Operation): string {
  const isService = parameters.some(({ name, schema }) => name === "id" && schema?.type === "string");
  return path.startsWith("/api/jobs/") && isService ? path.replace("{id}", "{service}") : path;
}

function isOriginOnly(path: string): boolean {
  return !path.startsWith("/api/");
}

function route(method: string, path: string, operation: Operation): HTMLElement {
  const summary = make("summary");
  summary.append(make("b", method.toUpperCase(), `method ${method}`), make("code", shownPath(path, operation)));
  if (isOriginOnly(path)) summary.append(make("span", t("originOnly"), "badge"));
  summary.append(english(operation.summary));
  const details = make("details", "", "route");
  details.append(summary);
  if (operation.description) details.append(paragraph(operation.description));
  const parameters = operation.parameters ?? [];
  if (parameters.length > 0) {
    details.append(
      make("h4", t("parameters")),
      members(
        parameters.map((each) => ({
          name: each.name,
          kind: [each.in, each.schema ? typeOf(each.schema) : undefined, each.required ? t("required") : undefined],
          text: each.description,
        })),
      ),
    );
  }
  if (operation.requestBody) {
    const { description, content } = operation.requestBody;
    details.append(make("h4", t("requestBody")), members([{ name: kinds(content), kind: [], text: description }]));
  }
  const answers = Object.entries(operation.responses).map(([status, { description, content }]) => ({
    name: status,
    kind: [kinds(content ?? {})],
    text: description,
  }));
  details.append(make("h4", t("answers")), members(answers));
  return details;
}

function type(name: string, schema: Schema): HTMLElement {
  const summary = make("summary");
  summary.append(make("code", name), english(schema.description));
  const details = make("details", "", "route");
  details.id = `type-${name}`;
  details.append(summary);
  if (schema.enum) details.append(paragraph(schema.enum.join(" | ")));
  const properties = Object.entries(schema.properties ?? {});
  if (properties.length > 0)
    details.append(
      members(properties.map(([member, of]) => ({ name: member, kind: [typeOf(of)], text: of.description }))),
    );
  return details;
}

function members(rows: { name: string; kind: (string | undefined)[]; text: string | undefined }[]): HTMLElement {
  const list = make("dl");
  for (const { name, kind, text } of rows) {
    const term = make("dt");
    term.append(make("code", name), make("span", ` ${kind.filter(Boolean).join(", ")}`));
    const meaning = make("dd");
    meaning.append(english(text));
    list.append(term, meaning);
  }
  return list;
}

function typeOf(schema: Schema): string {
  if (schema.$ref) return schema.$ref.split("/").at(-1) ?? "";
  if (schema.oneOf) return schema.oneOf.map(typeOf).join(" | ");
  const types = [schema.type ?? "any"].flat();
  return types.map((name) => (name === "array" && schema.items ? `${typeOf(schema.items)}[]` : name)).join(" | ");
}

function kinds(content: Record<string, { schema?: Schema }>): string {
  return Object.entries(content)
    .map(([media, { schema }]) => (schema ? `${typeOf(schema)} (${media})` : media))
    .join(", ");
}

function paragraph(text: string): HTMLElement {
  const made = make("p", "", "status");
  made.append(english(text));
  return made;
}

/** Code in backticks stays code; everything else is text. */
function english(text: string | undefined): HTMLElement {
  const made = make("span");
  made.lang = "en";
  for (const [n, part] of (text ?? "").split("`").entries()) made.append(n % 2 ? make("code", part) : part);
  return made;
}
