// Back button to the previous page, whose form keeps its values; hidden if there is no previous page.
const back = document.getElementById("back");
back.hidden = history.length < 2;
back.addEventListener("click", () => history.back());
