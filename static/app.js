// Light and dark, the live indicator, and "somebody changed this". All that a page does without it, it does by itself.
(() => {
  const root = document.documentElement;
  const $ = (selector) => document.querySelector(selector);
  const store = (name, value) => { try { localStorage.setItem(name, value); } catch {} };
  const stored = (name) => { try { return localStorage.getItem(name); } catch { return null; } };

  const theme = $("#theme");
  theme.hidden = false;
  theme.addEventListener("click", () => {
    const dark = root.dataset.theme
      ? root.dataset.theme === "dark"
      : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = dark ? "light" : "dark";
    store("theme", root.dataset.theme);
  });

  // The clipboard is there over https alone; elsewhere what is selected is copied the old way.
  document.querySelectorAll("[data-copy]").forEach((button) => {
    button.hidden = false;
    button.addEventListener("click", async () => {
      const field = document.getElementById(button.dataset.copy);
      field.select();
      try { await navigator.clipboard.writeText(field.value); } catch { document.execCommand("copy"); }
      button.textContent = "Copied";
    });
  });

  const main = $("#main");
  const url = main.getAttribute("hx-sse:connect");
  const poll = main.getAttribute("hx-get");
  if (!(url || poll) || !window.htmx) return;

  const conn = $("#conn"), lost = $("#lost"), freeze = $("#freeze");
  const SLOW = poll ? 12000 : 4000, DEAD = poll ? 25000 : 10000;
  let last = Date.now(), asked = Date.now(), failed = false, frozen = stored("frozen") === "yes";
  const dataTime = () => $("#live")?.dataset.at ?? "";

  const show = (text, state) => {
    if (conn.textContent !== text) conn.textContent = text;
    conn.dataset.state = state;
  };
  const say = (element, text) => {
    if (element.textContent !== text) element.textContent = text;
    element.hidden = !text;
  };

  const draw = () => {
    if (document.hidden) return;
    const age = Date.now() - last;
    const stale = frozen || failed || age > SLOW;
    root.classList.toggle("stale", stale && !frozen);
    if (frozen) show(`Frozen at ${dataTime()}`, "frozen");
    else if (age > DEAD) show(`Stale, ${Math.round(age / 1000)} s old`, "bad");
    else show(stale ? "Reconnecting" : "Live", stale ? "bad" : "good");
    say(lost, stale && !frozen ? `Connection lost, data from ${dataTime()}. Trying again.` : "");
  };

  // The settings in a form are older than those in force: say so, never overwrite what is being typed.
  const compare = () => {
    const live = $("#live"), note = $("#moved");
    if (!live || !note) return;
    const older = (name, now) => {
      const field = note.parentElement.querySelector(`[name="${name}"]`);
      return field && now && Number(field.value) < Number(now);
    };
    note.hidden = !(older("version", live.dataset.version) || older("schedule_version", live.dataset.schedule));
  };

  const arrived = (event) => {
    if (event.target !== main) return;
    last = Date.now();
    failed = false;
    if (frozen) event.preventDefault();
    draw();
  };
  main.addEventListener("htmx:sse:before:message", arrived);
  main.addEventListener("htmx:sse:after:message", compare);
  main.addEventListener("htmx:sse:error", () => { failed = true; draw(); });
  if (poll) {
    main.addEventListener("htmx:before:swap", arrived);
    main.addEventListener("htmx:after:swap", compare);
  }
  document.addEventListener("visibilitychange", () => { if (!document.hidden) { last = asked = Date.now(); draw(); } });

  // htmx reconnects a stream that once stood; one that never came up is asked for again here.
  const connectAgain = () => {
    if (poll || document.hidden || main._htmx?.sse || Date.now() - asked < 3000) return;
    asked = Date.now();
    htmx.ajax("GET", url, { source: main, swap: "none" });
  };

  freeze.hidden = false;
  const press = () => freeze.setAttribute("aria-pressed", String(frozen));
  freeze.addEventListener("click", () => {
    frozen = !frozen;
    store("frozen", frozen ? "yes" : "no");
    press();
    draw();
  });
  press();
  setInterval(() => { draw(); connectAgain(); }, 1000);
})();
