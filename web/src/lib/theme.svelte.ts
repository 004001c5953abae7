/** The light or dark theme: the system's preference until the user chooses. */
const KEY = 'vitrail-theme';
const preference = matchMedia('(prefers-color-scheme: dark)');

class Theme {
  dark = $state(false);

  toggle(): void {
    localStorage.setItem(KEY, this.dark ? 'light' : 'dark');
    applyTheme();
  }
}

export const theme = new Theme();

export function applyTheme(): void {
  const chosen = localStorage.getItem(KEY);
  theme.dark = chosen ? chosen === 'dark' : preference.matches;
  document.documentElement.dataset.theme = theme.dark ? 'dark' : 'light';
}

preference.addEventListener('change', applyTheme);
