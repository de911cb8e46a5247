"use strict";
// Before anything is drawn: the theme that was chosen here last, if one was.
try {
  const theme = localStorage.getItem("ml-pipeline theme");
  if (theme === "dark" || theme === "light") document.documentElement.dataset.theme = theme;
} catch { /* storage is switched off: the system's theme holds */ }
