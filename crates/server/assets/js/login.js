// A login link has its key after the "#", which browsers do not send to servers; it is read from there and sent
// once.
function useLink() {
  const key = location.hash.slice(1);
  if (!key) return;
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("login");
  form.elements.key.value = key;
  form.requestSubmit();
}

useLink();
// Following a link while this page is open does not reload it.
addEventListener("hashchange", useLink);
