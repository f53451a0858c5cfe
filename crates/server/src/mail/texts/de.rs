//! German texts.

use super::{ConfirmTexts, KindTexts, MailTexts, PluralText, UnsubscribePageTexts};

pub(super) const TEXTS: MailTexts = MailTexts {
    circuit_opened: KindTexts {
        name: "offene Circuits",
        subject: PluralText {
            one: "Circuit für {webhook} geöffnet: Zustellungen pausieren",
            many: "Circuit für {webhook} {count}-mal geöffnet: Zustellungen pausieren",
        },
        happened: PluralText {
            one: "Zu viele Anfragen an {webhook} sind fehlgeschlagen, deshalb hat sich der Circuit am {last} geöffnet. Die Zustellungen pausieren; keine geht verloren.",
            many: "Zu viele Anfragen an {webhook} sind fehlgeschlagen, deshalb hat sich der Circuit zwischen {first} und {last} {count}-mal geöffnet. Die Zustellungen pausieren; keine geht verloren.",
        },
        next: "Prüfen Sie die Fehler und beheben Sie die Ursache am Endpunkt. Redrive prüft ihn automatisch mit einzelnen Anfragen und setzt die Zustellungen fort, sobald eine gelingt.",
    },
    circuit_recovered: KindTexts {
        name: "wiederhergestellte Webhooks",
        subject: PluralText {
            one: "{webhook} ist wieder erreichbar",
            many: "{webhook} war {count}-mal wieder erreichbar",
        },
        happened: PluralText {
            one: "Anfragen an {webhook} gelingen seit {last} wieder. Die pausierten Zustellungen werden gesendet.",
            many: "{webhook} war zwischen {first} und {last} {count}-mal wieder erreichbar. Die pausierten Zustellungen werden gesendet.",
        },
        next: "Es ist nichts zu tun. Tritt das häufig auf, ist der Endpunkt möglicherweise zu langsam oder hat zu wenig Kapazität.",
    },
    webhook_disabled: KindTexts {
        name: "deaktivierte Webhooks",
        subject: PluralText {
            one: "{webhook} wurde deaktiviert",
            many: "{webhook} wurde {count}-mal deaktiviert",
        },
        happened: PluralText {
            one: "Redrive hat {webhook} am {last} deaktiviert. Es werden keine Ereignisse mehr dorthin gesendet, und die ausstehenden Zustellungen wurden abgebrochen.",
            many: "Redrive hat {webhook} {count}-mal deaktiviert, zuerst am {first} und zuletzt am {last}. Es werden keine Ereignisse mehr dorthin gesendet, und die ausstehenden Zustellungen wurden abgebrochen.",
        },
        next: "Beheben Sie den Fehler am Endpunkt oder korrigieren Sie die URL, aktivieren Sie den Webhook wieder und senden Sie die verpassten Ereignisse nach.",
    },
    delivery_dead: KindTexts {
        name: "endgültig fehlgeschlagene Zustellungen",
        subject: PluralText {
            one: "Eine Zustellung an {webhook} ist endgültig fehlgeschlagen",
            many: "{count} Zustellungen an {webhook} sind endgültig fehlgeschlagen",
        },
        happened: PluralText {
            one: "Eine Zustellung an {webhook} ist am {last} endgültig fehlgeschlagen: Sie wird nicht automatisch wiederholt und bleibt als Dead Letter gespeichert.",
            many: "{count} Zustellungen an {webhook} sind zwischen {first} und {last} endgültig fehlgeschlagen: Sie werden nicht automatisch wiederholt und bleiben als Dead Letters gespeichert.",
        },
        next: "Ermitteln Sie, warum der Endpunkt sie nicht angenommen hat, beheben Sie die Ursache und senden Sie die Dead Letters erneut, bevor ihre Aufbewahrungsfrist endet.",
    },
    dns_failing: KindTexts {
        name: "DNS-Fehler",
        subject: PluralText {
            one: "DNS-Auflösung für {webhook} schlägt fehl",
            many: "DNS-Auflösung für {webhook} ist {count}-mal fehlgeschlagen",
        },
        happened: PluralText {
            one: "Bei den meisten Versuchen in den Minuten vor {last} konnte der Hostname von {webhook} nicht aufgelöst werden.",
            many: "{count}-mal zwischen {first} und {last} konnte der Hostname von {webhook} über mehrere Minuten bei den meisten Versuchen nicht aufgelöst werden.",
        },
        next: "Prüfen Sie die Schreibweise der URL, und ob ihr Hostname im DNS eingetragen ist und seine Nameserver antworten.",
    },
    secret_due: KindTexts {
        name: "fällige Rotationen von Secrets",
        subject: PluralText {
            one: "Rotieren Sie das Signatur-Secret von {webhook}",
            many: "Rotieren Sie das Signatur-Secret von {webhook} ({count} Erinnerungen)",
        },
        happened: PluralText {
            one: "Das Secret, mit dem Anfragen an {webhook} signiert werden, sollte rotiert werden. Das wurde am {last} festgestellt.",
            many: "Das Secret, mit dem Anfragen an {webhook} signiert werden, sollte rotiert werden. Das wurde zwischen {first} und {last} {count}-mal festgestellt.",
        },
        next: "Rotieren Sie das Secret. Während der Übergangszeit werden Anfragen auch mit dem alten signiert, sodass der Endpunkt ohne Fehler umgestellt werden kann.",
    },
    quota_reached: KindTexts {
        name: "erreichte Kontingente",
        subject: PluralText {
            one: "Kontingent erreicht: {tenant}",
            many: "Kontingent erreicht: {tenant} ({count} Ablehnungen)",
        },
        happened: PluralText {
            one: "Eine Anfrage von {tenant} wurde am {last} abgelehnt, weil ein Kontingent erreicht ist.",
            many: "{count} Anfragen von {tenant} wurden zwischen {first} und {last} abgelehnt, weil ein Kontingent erreicht ist.",
        },
        next: "Schaffen Sie Kapazität, etwa indem Sie ungenutzte Webhooks löschen, oder warten Sie bis zum Ende des Tages; wiederholen Sie dann die abgelehnten Anfragen. Oder bitten Sie den Betreiber um ein größeres Kontingent.",
    },
    webhook_failing: KindTexts {
        name: "fehlschlagende Webhooks",
        subject: PluralText {
            one: "Alle Zustellungen an {webhook} schlagen fehl",
            many: "Alle Zustellungen an {webhook} sind {count}-mal fehlgeschlagen",
        },
        happened: PluralText {
            one: "Mehrere Anfragen an {webhook} sind nacheinander fehlgeschlagen, und bis {last} ist keine gelungen. Redrive wiederholt die Zustellungen automatisch.",
            many: "{count}-mal zwischen {first} und {last} sind mehrere Anfragen an {webhook} nacheinander fehlgeschlagen. Redrive wiederholt die Zustellungen automatisch.",
        },
        next: "Prüfen Sie die Fehler und beheben Sie die Ursache am Endpunkt, oder korrigieren Sie die URL. Sobald eine Zustellung gelingt, erhalten Sie eine weitere E-Mail.",
    },
    webhook_recovered: KindTexts {
        name: "wieder funktionierende Webhooks",
        subject: PluralText {
            one: "{webhook} nimmt wieder Zustellungen an",
            many: "{webhook} hat {count}-mal wieder Zustellungen angenommen",
        },
        happened: PluralText {
            one: "Nach Fehlern hat {webhook} am {last} wieder eine Zustellung angenommen. Die wartenden Zustellungen werden gesendet.",
            many: "{webhook} hat zwischen {first} und {last} {count}-mal wieder Zustellungen angenommen. Die wartenden Zustellungen werden gesendet.",
        },
        next: "Senden Sie die Zustellungen erneut, die in der Zwischenzeit zu Dead Letters geworden sind, falls es welche gibt.",
    },
    reasons: &[
        ("timeout", "der Endpunkt hat nicht rechtzeitig geantwortet"),
        ("server_error", "der Endpunkt hat einen Serverfehler gemeldet (5xx)"),
        ("client_error", "der Endpunkt hat die Anfrage abgelehnt (4xx)"),
        ("network", "der Endpunkt war nicht erreichbar"),
        ("tls", "es konnte keine sichere Verbindung aufgebaut werden"),
        ("rate_limit", "der Endpunkt begrenzt die Anzahl der Anfragen (429)"),
        ("payload_too_large", "die Nutzdaten sind zu groß für den Endpunkt (413)"),
        ("redirect", "der Endpunkt leitet weiter, und Weiterleitungen wird nicht gefolgt"),
        ("permanent", "der Endpunkt hat sie abgelehnt (keine Wiederholung)"),
        ("exhausted", "alle Versuche sind fehlgeschlagen"),
        ("tls_limit", "es konnte keine sichere Verbindung aufgebaut werden"),
        ("blocked_address", "die Adresse darf nicht aufgerufen werden"),
        ("expired", "sie ist abgelaufen"),
        ("dns", "der Hostname konnte nicht aufgelöst werden"),
        ("gone", "der Endpunkt hat mit 410 Gone geantwortet"),
        ("failing", "zu lange sind alle Anfragen fehlgeschlagen"),
        ("not_verified", "der Endpunkt hat die Challenge nicht zurückgesendet"),
        ("age", "das Höchstalter ist überschritten"),
        ("max_events_per_day", "heute dürfen keine weiteren Ereignisse veröffentlicht werden"),
        ("max_webhooks", "es dürfen keine weiteren Webhooks angelegt werden"),
    ],
    thousands: '.',
    webhook: "Webhook",
    description: "Beschreibung",
    tenant: "Mandant",
    reason: "Grund",
    details: "Details",
    event_type: "Letzter Ereignistyp",
    delivery: "Letzte Zustellung",
    when: "Zeitpunkt",
    how_often: "Anzahl",
    first: "Zuerst",
    last: "Zuletzt",
    until: "Bis",
    what_to_do: "Was zu tun ist",
    open: "Im Dashboard öffnen",
    why_you: "Sie erhalten diese E-Mail, weil {address} als Empfänger von Benachrichtigungen über {tenant} eingetragen ist. Dies ist eine automatische Nachricht; Antworten werden nicht gelesen.",
    unsubscribe: "Benachrichtigungen über {kind} abbestellen",
    ask: "Um Benachrichtigungen über {kind} abzubestellen, bitten Sie den Administrator von {tenant}, sie stummzuschalten.",
    page: UnsubscribePageTexts {
        title: "Abbestellen?",
        question: "Sollen keine E-Mails von {tenant} über {kind} mehr an {address} gesendet werden? Andere Benachrichtigungen werden weiterhin gesendet.",
        button: "Abbestellen",
        done_title: "Abbestellt",
        done: "{address} erhält keine E-Mails von {tenant} über {kind} mehr.",
        back: "Nur Sie können sie wieder abonnieren: mit der Schaltfläche unten oder später mit dem Link in einer dieser E-Mails.",
        undo: "Wieder abonnieren",
        undone_title: "Wieder abonniert",
        undone: "{address} erhält wieder E-Mails von {tenant} über {kind}.",
        bad_title: "Dieser Link funktioniert nicht",
        bad: "Möglicherweise ist er unvollständig, oder die Installation hat neue Schlüssel. Bitten Sie den Administrator Ihrer Webhooks, die E-Mails stummzuschalten, oder verwenden Sie den Link in einer neueren E-Mail.",
    },
    confirm: ConfirmTexts {
        subject: "Bestätigen Sie diese Adresse für Benachrichtigungen von {host}",
        requested: "Das Konto {tenant} bei {host} möchte Benachrichtigungen über seine Webhooks an diese Adresse senden.",
        about: "{host} betreibt Redrive. Redrive stellt Webhooks zu (Nachrichten von einem Programm an ein anderes) und benachrichtigt die Verantwortlichen, wenn Zustellungen fehlschlagen.",
        what_to_do: "Wenn Sie diese E-Mails erhalten möchten, öffnen Sie den Link und klicken Sie auf der Seite auf die Schaltfläche. Der Link ist {days} Tage gültig.",
        open: "Diese Adresse bestätigen",
        ignore: "Wenn Sie diese E-Mail nicht erwartet haben, ignorieren Sie sie: Ohne Ihre Bestätigung werden keine Benachrichtigungen gesendet.",
        title: "Diese Adresse bestätigen?",
        question: "Sollen Benachrichtigungen über die Webhooks von {tenant} an {address} gesendet werden?",
        button: "Bestätigen",
        done_title: "Bestätigt",
        done: "{address} erhält Benachrichtigungen über die Webhooks von {tenant}.",
        back: "Jede Benachrichtigung enthält einen Link zum Abbestellen.",
        bad_title: "Dieser Link ist ungültig",
        bad: "Möglicherweise ist er unvollständig oder abgelaufen. Bitten Sie den Betreiber der Webhooks, eine neue Bestätigungs-E-Mail zu senden.",
    },
};
