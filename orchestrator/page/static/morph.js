// Makes elements of the page like newer ones and touches nothing that is the same already: focus, selection, scroll
// positions and what is open stay.

/** Give every element of `html` that has an id to the element of the page with that id. */
export function show(html) {
  const parsed = new DOMParser().parseFromString(html, "text/html");
  const place = placeOf(document.activeElement);
  for (const fresh of [...parsed.body.children]) {
    const old = document.getElementById(fresh.id);
    if (old) morph(old, document.importNode(fresh, true));
  }
  if (place && !place.element.isConnected) refocus(place);
}

function morph(old, fresh) {
  if (old.nodeName !== fresh.nodeName) {
    old.replaceWith(fresh);
    return;
  }
  if (old.nodeType !== Node.ELEMENT_NODE) {
    if (old.data !== fresh.data) old.data = fresh.data;
    return;
  }
  for (const { name, value } of fresh.attributes) {
    if (old.getAttribute(name) !== value) old.setAttribute(name, value);
  }
  for (const { name } of [...old.attributes]) {
    // What is open is the reader's.
    if (!fresh.hasAttribute(name) && name !== "open") old.removeAttribute(name);
  }
  morphChildren(old, fresh);
}

function morphChildren(old, fresh) {
  const keys = new Set([...fresh.childNodes].map(keyOf));
  for (const child of [...old.childNodes]) {
    if (keyOf(child) && !keys.has(keyOf(child))) child.remove();
  }
  let next = old.firstChild;
  for (const child of [...fresh.childNodes]) {
    const same = keyOf(child) ? [...old.childNodes].find((node) => keyOf(node) === keyOf(child)) : next;
    if (!same || !isLike(same, child)) {
      old.insertBefore(child, next);
      continue;
    }
    if (same === next) next = next.nextSibling;
    else old.insertBefore(same, next);
    morph(same, child);
  }
  while (next) {
    const after = next.nextSibling;
    next.remove();
    next = after;
  }
}

function keyOf(node) {
  return node.dataset?.key ?? null;
}

function isLike(old, fresh) {
  return old.nodeName === fresh.nodeName && keyOf(old) === keyOf(fresh);
}

// Where the focus is: an element, and the entry of a list around it.
function placeOf(element) {
  const entry = element?.closest("li[data-key]");
  return entry && { element, key: keyOf(entry), list: entry.parentElement.closest("[id]").id };
}

// A button that was pressed may be gone for another: the keyboard goes on from the same entry.
function refocus({ key, list }) {
  const section = document.getElementById(list);
  const entry = section.querySelector(`li[data-key="${CSS.escape(key)}"]`);
  (entry?.querySelector("h3") ?? section.querySelector("h2")).focus();
}
