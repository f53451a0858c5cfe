// A link has its key after the "#", where no server sees it: it is taken from there and sent once.
const key = decodeURIComponent(location.hash.slice(1));
if (key) {
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("login");
  form.elements.key.value = key;
  form.requestSubmit();
}
