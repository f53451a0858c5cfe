// Whoever came from a page of ours can go back to it, and finds their form as they left it.
const back = document.getElementById("back");
back.hidden = history.length < 2;
back.addEventListener("click", () => history.back());
