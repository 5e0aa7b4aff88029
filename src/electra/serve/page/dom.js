// Names and properties -> elements of the page.

/** An element with properties, and attributes where a name has a dash or is `role`. */
export function element(name, properties = {}, ...children) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "role" || key.includes("-")) made.setAttribute(key, value);
    else made[key] = value;
  }
  made.append(...children);
  return made;
}

/** `parts("detect")` gives `part("text")`, the element with the id "detect-text". */
export const parts = (panel) => (name) => document.getElementById(`${panel}-${name}`);

/** A share of 1 as people read it; no line ends before the sign. */
export const percent = (share, digits = 0) => `${(share * 100).toFixed(digits)}\u00a0%`;

/** Calls `send` when a form is submitted, also by Ctrl+Enter in a text. */
export function onSubmit(form, send) {
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    send();
  });
  form.addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) form.requestSubmit();
  });
}

/** A table with a bar for each name and share. */
export function bars(entries) {
  const rows = entries.map(([name, share]) => {
    const bar = element("span", { className: "bar", "aria-hidden": "true" });
    bar.style.setProperty("--share", share);
    return element(
      "tr",
      {},
      element("th", { scope: "row", dir: "auto" }, name),
      element("td", { className: "bar-cell" }, bar),
      element("td", { className: "number" }, percent(share, 1)),
    );
  });
  return element("table", { className: "bars" }, element("tbody", {}, ...rows));
}
