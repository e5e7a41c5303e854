import { element } from "./elements.ts";
import { preparePicture } from "./flood.ts";
import { watchLanes } from "./live.ts";
import { showProblem } from "./notice.ts";
import { refreshUsage } from "./session.ts";
import { type Language, language, setLanguage, translatePage } from "./text.ts";
import "./account.ts";
import "./curl.ts";
import "./hanging.ts";
import "./lanes.ts";
import "./tabs.ts";
import "./any-service.ts";
import "./try.ts";

const choice = element("language", HTMLSelectElement);
choice.value = language;
choice.addEventListener("change", () => setLanguage(choice.value as Language));

translatePage();
watchLanes();
void refreshUsage().catch((error) => showProblem(error));
void preparePicture().catch((error) => showProblem(error, element("flood", HTMLButtonElement)));
