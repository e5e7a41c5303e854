document.title = "A Next.js site";
