import { element } from "./elements.ts";
import { showProblem } from "./notice.ts";
import { watchLanes } from "./river.ts";
import { refreshUsage } from "./session.ts";
import { type Language, language, setLanguage, translatePage } from "./text.ts";
import "./account.ts";
import "./demo.ts";
import "./try.ts";

const choice = element("language", HTMLSelectElement);
choice.value = language;
choice.addEventListener("change", () => setLanguage(choice.value as Language));

translatePage();
void refreshUsage().catch(showProblem);
watchLanes();
