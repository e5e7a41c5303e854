// A small web application without Weir. It has sessions in cookies, CSRF tokens, redirects, uploads, ranges, server-sent
// events and WebSockets. backend.test.ts runs it with and without the edge in front. Its answers depend on the request
// only, so that two of them can be compared.
package main

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"crypto/hmac"
	"crypto/sha1"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"time"
)

var started = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func sign(kind, user string) string {
	mac := hmac.New(sha256.New, []byte("a secret of this application"))
	mac.Write([]byte(kind + user))
	return user + "." + hex.EncodeToString(mac.Sum(nil))[:32]
}

// user returns the name in a valid session cookie.
func user(r *http.Request) string {
	cookie, err := r.Cookie("session")
	if err != nil {
		return ""
	}
	name, _, _ := strings.Cut(cookie.Value, ".")
	if cookie.Value != sign("session", name) {
		return ""
	}
	return name
}

func answer(w http.ResponseWriter, status int, value any) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(value)
}

func login(w http.ResponseWriter, r *http.Request) {
	name := r.FormValue("user")
	if name == "" || r.FormValue("password") != "secret" {
		http.Error(w, "wrong user or password", http.StatusUnauthorized)
		return
	}
	http.SetCookie(w, &http.Cookie{Name: "session", Value: sign("session", name), Path: "/", HttpOnly: true,
		SameSite: http.SameSiteLaxMode})
	http.SetCookie(w, &http.Cookie{Name: "csrf", Value: sign("csrf", name), Path: "/", MaxAge: 3600})
	http.Redirect(w, r, "/app", http.StatusSeeOther)
}

func app(w http.ResponseWriter, r *http.Request) {
	name := user(r)
	if name == "" {
		http.Redirect(w, r, "/login?next="+r.URL.Path, http.StatusFound)
		return
	}
	w.Header().Set("Content-Security-Policy", "default-src 'self'; script-src 'nonce-abc'")
	w.Header().Set("Content-Type", "text/html; charset=utf-8")
	w.Header().Set("X-Frame-Options", "DENY")
	fmt.Fprintf(w, "<!doctype html><title>Notes of %s</title>", name)
}

func notes(w http.ResponseWriter, r *http.Request) {
	name := user(r)
	if name == "" || r.Header.Get("X-CSRF-Token") != sign("csrf", name) {
		http.Error(w, "no session or no CSRF token", http.StatusForbidden)
		return
	}
	var note struct{ Text string }
	if err := json.NewDecoder(r.Body).Decode(&note); err != nil {
		answer(w, http.StatusBadRequest, map[string]string{"error": "no JSON"})
		return
	}
	w.Header().Set("Location", "/app/notes/1")
	answer(w, http.StatusCreated, map[string]string{"user": name, "text": note.Text})
}

func upload(w http.ResponseWriter, r *http.Request) {
	hash := sha256.New()
	size, err := io.Copy(hash, r.Body)
	if err != nil {
		http.Error(w, "the body ended early", http.StatusBadRequest)
		return
	}
	answer(w, http.StatusOK, map[string]any{"size": size, "sha256": hex.EncodeToString(hash.Sum(nil))})
}

func form(w http.ResponseWriter, r *http.Request) {
	if err := r.ParseMultipartForm(1 << 20); err != nil {
		http.Error(w, "no form", http.StatusBadRequest)
		return
	}
	file, header, err := r.FormFile("file")
	if err != nil {
		http.Error(w, "no file", http.StatusBadRequest)
		return
	}
	data, _ := io.ReadAll(file)
	answer(w, http.StatusOK, map[string]any{"name": header.Filename, "size": len(data), "note": r.FormValue("note")})
}

func download(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("ETag", `"v1"`)
	data := bytes.Repeat([]byte("0123456789abcdef"), 4096)
	http.ServeContent(w, r, r.PathValue("name"), started, bytes.NewReader(data))
}

func compressed(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Vary", "Accept-Encoding")
	w.Header().Set("Content-Type", "text/plain")
	text := strings.Repeat("compressible ", 1000)
	if !strings.Contains(r.Header.Get("Accept-Encoding"), "gzip") {
		_, _ = io.WriteString(w, text)
		return
	}
	w.Header().Set("Content-Encoding", "gzip")
	writer := gzip.NewWriter(w)
	_, _ = io.WriteString(writer, text)
	_ = writer.Close()
}

func headers(w http.ResponseWriter, _ *http.Request) {
	for _, pair := range [][2]string{
		{"Set-Cookie", "a=1; Path=/; Secure"}, {"Set-Cookie", "b=2; Expires=Wed, 21 Oct 2026 07:28:00 GMT"},
		{"Link", "</a>; rel=next"}, {"Link", "</b>; rel=prev"}, {"X-Total-Count", "17"}, {"Vary", "Accept-Language"},
		{"Cache-Control", "public, max-age=60"}, {"Content-Language", "en"}, {"Deprecation", "true"},
		{"X-Content-Type-Options", "nosniff"}, {"Permissions-Policy", "camera=()"}, {"Server", "app/1"},
		{"Access-Control-Allow-Origin", "*"}, {"Keep-Alive", "timeout=5"}, {"Retry-After", "7"},
	} {
		w.Header().Add(pair[0], pair[1])
	}
	fmt.Fprintln(w, "headers")
}

// echo returns the request as the application sees it.
func echo(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	answer(w, http.StatusOK, map[string]any{"method": r.Method, "target": r.RequestURI, "path": r.URL.Path,
		"query": r.URL.Query(), "headers": r.Header, "body": string(body), "length": len(body)})
}

func events(w http.ResponseWriter, r *http.Request) {
	w.Header().Set("Content-Type", "text/event-stream")
	from, _ := strconv.Atoi(r.Header.Get("Last-Event-ID"))
	for id := from + 1; id <= from+5; id++ {
		fmt.Fprintf(w, "id: %d\nevent: tick\ndata: %d\n\n", id, id)
		w.(http.Flusher).Flush()
		time.Sleep(20 * time.Millisecond)
	}
}

// socket echoes short messages of a WebSocket.
func socket(w http.ResponseWriter, r *http.Request) {
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
		http.Error(w, "expected a WebSocket", http.StatusUpgradeRequired)
		return
	}
	sum := sha1.Sum([]byte(r.Header.Get("Sec-WebSocket-Key") + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"))
	connection, buffer, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(err)
	}
	defer connection.Close()
	fmt.Fprintf(connection, "HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"+
		"Sec-WebSocket-Accept: %s\r\n\r\n", base64.StdEncoding.EncodeToString(sum[:]))
	echoFrames(connection, buffer.Reader)
}

func echoFrames(connection net.Conn, reader *bufio.Reader) {
	for {
		head := make([]byte, 6)
		if _, err := io.ReadFull(reader, head); err != nil {
			return
		}
		payload := make([]byte, head[1]&127)
		if _, err := io.ReadFull(reader, payload); err != nil {
			return
		}
		for at := range payload {
			payload[at] ^= head[2+at%4]
		}
		_, _ = connection.Write(append([]byte{head[0], byte(len(payload))}, payload...))
		if head[0]&15 == 8 {
			return
		}
	}
}

func main() {
	mux := http.NewServeMux()
	mux.HandleFunc("POST /login", login)
	mux.HandleFunc("GET /app", app)
	mux.HandleFunc("POST /app/notes", notes)
	mux.HandleFunc("PUT /files/{name}", upload)
	mux.HandleFunc("GET /files/{name}", download)
	mux.HandleFunc("POST /form", form)
	mux.HandleFunc("GET /compressed", compressed)
	mux.HandleFunc("GET /headers", headers)
	mux.HandleFunc("/echo/", echo)
	mux.HandleFunc("GET /events", events)
	mux.HandleFunc("GET /socket", socket)
	mux.HandleFunc("/redirect/{status}", func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.PathValue("status"))
		http.Redirect(w, r, r.URL.Query().Get("to"), status)
	})
	mux.HandleFunc("/status/{status}", func(w http.ResponseWriter, r *http.Request) {
		status, _ := strconv.Atoi(r.PathValue("status"))
		if status == http.StatusUnauthorized {
			w.Header().Set("WWW-Authenticate", `Basic realm="app"`)
		}
		w.WriteHeader(status)
		if status != http.StatusNoContent && status != http.StatusNotModified {
			fmt.Fprintln(w, "status", status)
		}
	})
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		panic(err)
	}
	fmt.Printf("listening on http://%s\n", listener.Addr())
	panic(http.Serve(listener, mux))
}
