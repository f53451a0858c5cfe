// Date-time fields: the address and the API have times in UTC, the user enters them in the chosen zone.
import { fromField, toField } from "./zone.js";

/** Replaces the text fields for times of a filter by date pickers. */
export function timeFields() {
  for (const field of document.querySelectorAll("input[data-time]:not([type=datetime-local])")) {
    const calendar = document.createElement("input");
    calendar.type = "datetime-local";
    if (field.hasAttribute("data-seconds")) calendar.step = "1";
    const known = new Date(field.value);
    const isKnown = field.value && !Number.isNaN(known.getTime());
    if (isKnown) calendar.value = toField(known, known.getUTCSeconds() > 0 ? 19 : 16);
    calendar.addEventListener("change", () => {
      field.value = calendar.value ? fromField(calendar.value).toISOString() : "";
    });
    field.type = "hidden";
    field.after(calendar);
  }
}
