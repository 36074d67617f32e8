// The link from a run's page to a comparison: parts of the page change without it, so the state is taken from the address.
document.addEventListener("click", (event) => {
  const link = event.target.closest("a[data-compare]");
  if (link) link.href = `/compare?a=${encodeURIComponent(location.pathname + location.search)}`;
});
