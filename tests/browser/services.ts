import { developmentServices } from "../../scripts/lib/services.ts";
import { required } from "../harness/lifetime.ts";

/** The services of `npm start`: the picture's service has a known time of work. */
export const servicesOfStart = await developmentServices(required("WEIR_TEST_FOLDER"));
