import { Failure } from "../failure.ts";

/**
 * The section of a version in CHANGELOG.md. Its relative links become links into `files`, because release notes are not
 * read next to the files.
 */
export function notesOf(version: string, changelog: string, files?: string): string {
  const sections = changelog.split(/^## /m).slice(1);
  const section = sections.find((text) => text.startsWith(`[${version.replace(/^v/, "")}]`));
  const notes = section?.slice(section.indexOf("\n")).trim();
  if (!notes)
    throw new Failure(
      `CHANGELOG.md has no section for ${version}`,
      `add a heading above the unreleased changes: ## [${version.replace(/^v/, "")}] - and the date`,
    );
  if (!files) return `${notes}\n`;
  return `${notes.replace(/\]\((?![a-z]+:|#)([^)]+)\)/gi, `](${files}/$1)`)}\n`;
}
