import { Failure } from "../failure.ts";

/**
 * What CHANGELOG.md says of a version. Its links to files become links into `files`, since notes of a release are not
 * read beside the files.
 */
export function notesOf(version: string, changelog: string, files?: string): string {
  const sections = changelog.split(/^## /m).slice(1);
  const section = sections.find((text) => text.startsWith(`[${version.replace(/^v/, "")}]`));
  const notes = section?.slice(section.indexOf("\n")).trim();
  if (!notes)
    throw new Failure(
      `CHANGELOG.md says nothing of ${version}`,
      `give what is unreleased a heading of its own: ## [${version.replace(/^v/, "")}] - and the date`,
    );
  if (!files) return `${notes}\n`;
  return `${notes.replace(/\]\((?![a-z]+:|#)([^)]+)\)/gi, `](${files}/$1)`)}\n`;
}
