// Names of panels -> a row of tabs for them: click, arrow keys, and the address after "#".

/** Show the tabs of these panels, and one panel. */
export function showTabs(names) {
  const tabs = names.map((name) => document.getElementById(`tab-${name}`));
  const list = document.getElementById("tabs");

  function choose(chosen) {
    for (const tab of tabs) {
      const isChosen = tab === chosen;
      tab.setAttribute("aria-selected", String(isChosen));
      tab.tabIndex = isChosen ? 0 : -1;
      document.getElementById(tab.getAttribute("aria-controls")).hidden = !isChosen;
    }
    // Without an entry in the history: "back" leaves the page, as people expect of tabs.
    history.replaceState(null, "", `#${chosen.getAttribute("aria-controls")}`);
    chosen.scrollIntoView({ block: "nearest", inline: "nearest" });
  }

  function fromAddress() {
    choose(tabs[Math.max(0, names.indexOf(location.hash.slice(1)))]);
  }

  list.addEventListener("click", ({ target }) => tabs.includes(target) && choose(target));
  list.addEventListener("keydown", (event) => {
    const place = tabs.indexOf(event.target);
    const steps = { ArrowRight: place + 1, ArrowLeft: place - 1, Home: 0, End: -1 };
    if (place < 0 || !(event.key in steps)) return;
    event.preventDefault();
    const next = tabs.at(steps[event.key] % tabs.length);
    choose(next);
    next.focus();
  });
  addEventListener("hashchange", fromAddress);
  for (const tab of tabs) tab.hidden = false;
  list.hidden = false;
  fromAddress();
}
