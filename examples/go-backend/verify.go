package main

import (
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"net/http"
	"strings"
	"time"
)

// Verify returns the claims of a request's assertion.
func Verify(r *http.Request, secret []byte) (map[string]any, error) {
	parts := strings.Split(r.Header.Get("Weir-Assertion"), ".")
	if len(parts) != 3 {
		return nil, errors.New("the request has no assertion")
	}
	mac := hmac.New(sha256.New, secret)
	mac.Write([]byte(parts[0] + "." + parts[1]))
	signature, _ := base64.RawURLEncoding.DecodeString(parts[2])
	if !hmac.Equal(signature, mac.Sum(nil)) {
		return nil, errors.New("the assertion's signature does not match")
	}
	payload, _ := base64.RawURLEncoding.DecodeString(parts[1])
	var claims map[string]any
	if err := json.Unmarshal(payload, &claims); err != nil {
		return nil, err
	}
	target := sha256.Sum256([]byte(r.RequestURI))
	digest := base64.RawURLEncoding.EncodeToString(target[:])
	if claims["aud"] != "weir-origin" || claims["htm"] != r.Method || claims["htd"] != digest {
		return nil, errors.New("the assertion is for another request")
	}
	if expires, _ := claims["exp"].(float64); expires <= float64(time.Now().Unix()) {
		return nil, errors.New("the assertion has expired")
	}
	return claims, nil
}
