"use strict";
// Before anything is drawn: restore the last chosen theme, if any.
try {
  const theme = localStorage.getItem("ml-pipeline theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* storage is switched off: the system's theme holds */ }
