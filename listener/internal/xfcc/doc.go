// Package xfcc reads the X-Forwarded-Client-Cert header, in which a proxy that terminates TLS
// describes its client.
//
// The format is Envoy's ("HTTP header manipulation", section x-forwarded-client-cert). Elements are
// separated by commas, one for each proxy on the way. An element has key=value pairs, separated by
// semicolons. A value with a separator is in double quotes, in which a backslash escapes the next
// character. Cert and Chain are PEM in percent-encoding.
//
// The package only reads. The caller decides which proxy may write the header, which element
// counts, and whether a certificate is good.
package xfcc
