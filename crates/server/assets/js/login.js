// A link has its key after the "#", where no server sees it: it is taken from there and sent once.
function useLink() {
  const key = location.hash.slice(1);
  if (!key) return;
  history.replaceState(null, "", location.pathname + location.search);
  const form = document.getElementById("login");
  form.elements.key.value = key;
  form.requestSubmit();
}

useLink();
// A link that is followed while this page is open already loads nothing anew.
addEventListener("hashchange", useLink);
