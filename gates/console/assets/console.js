// Keeps an open page current: when the server says that something changed, the
// page is fetched anew and its parts are exchanged. Without this script every
// page works as it is.
'use strict';
(() => {
  // A graph that is wider than the screen shows its middle first.
  for (const canvas of document.querySelectorAll('.canvas')) {
    canvas.scrollLeft = (canvas.scrollWidth - canvas.clientWidth) / 2;
  }

  let from = document.body.dataset.live;
  if (!from || !window.EventSource) return;
  let busy = false;
  let again = false;
  let typed = false;
  document.addEventListener('input', (e) => { if (e.target.closest('[data-part]')) typed = true; });

  // A part that somebody types in, or whose button has the focus, stays as it is
  // unless its form is gone on the server.
  function kept(old, fresh) {
    return old.querySelector('form') && fresh.querySelector('form') && (typed || old.contains(document.activeElement));
  }

  async function reload() {
    if (busy) { again = true; return; }
    busy = true;
    try {
      const answer = await fetch(location.href, { redirect: 'manual', credentials: 'same-origin' });
      if (!answer.ok) { location.reload(); return; }
      const page = new DOMParser().parseFromString(await answer.text(), 'text/html');
      for (const fresh of page.querySelectorAll('[data-part]')) {
        const old = document.getElementById(fresh.id);
        if (!old || old.isEqualNode(fresh) || kept(old, fresh)) continue;
        for (const was of old.querySelectorAll('details[id]')) {
          const now = fresh.querySelector('#' + CSS.escape(was.id));
          if (now) now.open = was.open;
        }
        const scrolled = old.querySelector('.canvas')?.scrollLeft;
        const focused = old.contains(document.activeElement) && document.activeElement.getAttribute('href');
        old.replaceWith(document.adoptNode(fresh));
        const canvas = fresh.querySelector('.canvas');
        if (canvas && scrolled !== undefined) canvas.scrollLeft = scrolled;
        if (focused) fresh.querySelector('[href="' + CSS.escape(focused) + '"]')?.focus({ preventScroll: true });
      }
      document.title = page.title;
      from = page.body.dataset.live || from;
    } catch {
      // The stream comes again by itself, and with it the next attempt.
    } finally {
      busy = false;
      if (again) { again = false; reload(); }
    }
  }

  // A browser opens few connections to one server: a page that nobody sees lets
  // go of its own.
  let stream = null;
  function listen() {
    stream = new EventSource(from);
    stream.addEventListener('change', reload);
  }
  function leave() {
    if (stream) stream.close();
    stream = null;
  }
  document.addEventListener('visibilitychange', () => {
    if (document.hidden) leave();
    else if (!stream) reload().then(listen);
  });
  setInterval(() => { if (!document.hidden) reload(); }, 30000); // "3 min ago"
  window.addEventListener('pagehide', leave);
  window.addEventListener('pageshow', (e) => { if (e.persisted) location.reload(); });
  if (!document.hidden) listen();
})();
