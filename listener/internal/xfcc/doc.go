// Package xfcc reads the X-Forwarded-Client-Cert header, in which a proxy that ends TLS tells who its client is.
//
// The format is Envoy's ("HTTP header manipulation", section x-forwarded-client-cert): elements separated by commas, one for each
// proxy on the way, each made of key=value pairs separated by semicolons. A value that holds one of the separators stands in double quotes,
// in which a backslash takes away the meaning of the character behind it. Cert and Chain hold PEM in percent-encoding.
//
// The package reads; it believes nothing. Who may write the header, which element counts, and whether a certificate is
// good is for the caller to decide.
package xfcc
