//! German texts.

use super::{ConfirmWords, KindTexts, MailTexts, PluralText, UnsubscribePageTexts};

pub(super) const WORDS: MailTexts = MailTexts {
    circuit_opened: KindTexts {
        name: "angehaltene Anfragen nach zu vielen Fehlern",
        subject: PluralText {
            one: "Anfragen an {webhook} sind angehalten",
            many: "Anfragen an {webhook} wurden {count}-mal angehalten",
        },
        happened: PluralText {
            one: "Zu viele Anfragen an {webhook} sind fehlgeschlagen, deshalb sendet Redrive seit {last} nichts mehr dorthin. Ereignisse warten, keines geht verloren.",
            many: "Zu viele Anfragen an {webhook} sind fehlgeschlagen, deshalb hat Redrive zwischen {first} und {last} {count}-mal aufgehört zu senden. Ereignisse warten, keines geht verloren.",
        },
        next: "Sehen Sie sich die Fehler an und reparieren Sie den Empfänger. Redrive versucht es von selbst wieder und sendet das Wartende, sobald das gelingt.",
    },
    circuit_recovered: KindTexts {
        name: "Anfragen, die wieder gelingen",
        subject: PluralText {
            one: "{webhook} funktioniert wieder",
            many: "{webhook} hat sich {count}-mal erholt",
        },
        happened: PluralText {
            one: "Anfragen an {webhook} gelingen seit {last} wieder. Was gewartet hat, wird jetzt gesendet.",
            many: "Anfragen an {webhook} gelangen zwischen {first} und {last} {count}-mal wieder. Was gewartet hat, wird jetzt gesendet.",
        },
        next: "Es ist nichts zu tun. Kommt das oft vor, ist der Empfänger vielleicht zu langsam oder zu klein.",
    },
    webhook_disabled: KindTexts {
        name: "abgeschaltete Webhooks",
        subject: PluralText {
            one: "{webhook} wurde abgeschaltet",
            many: "{webhook} wurde {count}-mal abgeschaltet",
        },
        happened: PluralText {
            one: "Redrive hat {webhook} am {last} abgeschaltet. Es werden keine Ereignisse mehr dorthin gesendet; was gewartet hat, wurde abgebrochen.",
            many: "Redrive hat {webhook} {count}-mal abgeschaltet, zuerst am {first} und zuletzt am {last}. Es werden keine Ereignisse mehr dorthin gesendet; was gewartet hat, wurde abgebrochen.",
        },
        next: "Reparieren Sie den Empfänger oder berichtigen Sie die URL, schalten Sie den Webhook wieder ein und senden Sie nach, was er verpasst hat.",
    },
    delivery_dead: KindTexts {
        name: "aufgegebene Zustellungen",
        subject: PluralText {
            one: "Eine Zustellung an {webhook} wurde aufgegeben",
            many: "{count} Zustellungen an {webhook} wurden aufgegeben",
        },
        happened: PluralText {
            one: "Eine Zustellung an {webhook} ist am {last} endgültig gescheitert: Sie wird nicht von selbst wiederholt und liegt bei den unzustellbaren.",
            many: "{count} Zustellungen an {webhook} sind zwischen {first} und {last} endgültig gescheitert: Sie werden nicht von selbst wiederholt und liegen bei den unzustellbaren.",
        },
        next: "Finden Sie heraus, warum der Empfänger sie nicht angenommen hat, reparieren Sie ihn und wiederholen Sie die unzustellbaren, bevor ihre Aufbewahrungsfrist endet.",
    },
    dns_failing: KindTexts {
        name: "Rechnernamen, die nicht aufgelöst werden",
        subject: PluralText {
            one: "Der Rechnername von {webhook} wird nicht aufgelöst",
            many: "Der Rechnername von {webhook} wurde {count}-mal nicht aufgelöst",
        },
        happened: PluralText {
            one: "Bei den meisten Versuchen der letzten Minuten vor {last} konnte der Rechnername von {webhook} nicht aufgelöst werden.",
            many: "{count}-mal zwischen {first} und {last} konnte der Rechnername von {webhook} bei den meisten Versuchen einiger Minuten nicht aufgelöst werden.",
        },
        next: "Prüfen Sie die Schreibweise der URL, und ob ihr Rechnername im DNS steht und seine Namensserver antworten.",
    },
    secret_due: KindTexts {
        name: "Geheimnisse, die erneuert werden sollten",
        subject: PluralText {
            one: "Das Geheimnis von {webhook} sollte erneuert werden",
            many: "Das Geheimnis von {webhook} sollte erneuert werden ({count} Erinnerungen)",
        },
        happened: PluralText {
            one: "Das Geheimnis, das Anfragen an {webhook} unterschreibt, ist alt. Das fiel am {last} auf.",
            many: "Das Geheimnis, das Anfragen an {webhook} unterschreibt, ist alt. Das fiel zwischen {first} und {last} {count}-mal auf.",
        },
        next: "Erneuern Sie das Geheimnis. Das alte unterschreibt noch eine Weile mit, so dass der Empfänger in Ruhe umgestellt werden kann.",
    },
    quota_reached: KindTexts {
        name: "aufgebrauchte Kontingente",
        subject: PluralText {
            one: "Ein Kontingent von {tenant} ist aufgebraucht",
            many: "Ein Kontingent von {tenant} ist aufgebraucht: {count} Ablehnungen",
        },
        happened: PluralText {
            one: "Am {last} wurde {tenant} etwas abgelehnt, weil ein Kontingent aufgebraucht ist.",
            many: "Zwischen {first} und {last} wurde {tenant} {count}-mal etwas abgelehnt, weil ein Kontingent aufgebraucht ist.",
        },
        next: "Schaffen Sie Platz, etwa indem Sie Webhooks löschen, die niemand mehr braucht, oder warten Sie das Ende des Tages ab; versuchen Sie das Abgelehnte dann noch einmal. Oder bitten Sie den Betreiber um ein größeres Kontingent.",
    },
    reasons: &[
        ("permanent", "der Empfänger hat es endgültig abgelehnt"),
        ("exhausted", "alle Versuche sind fehlgeschlagen"),
        ("tls_limit", "es kam keine sichere Verbindung zustande"),
        ("blocked_address", "die Adresse darf nicht angerufen werden"),
        ("expired", "die Zeit war abgelaufen"),
        ("dns", "der Rechnername konnte nicht aufgelöst werden"),
        ("gone", "der Empfänger hat mit 410 Gone geantwortet"),
        ("failing", "zu lange ist jede Anfrage fehlgeschlagen"),
        ("not_verified", "der Empfänger hat die Prüfzahl nicht zurückgesandt"),
        ("age", "es ist älter, als es sein sollte"),
        ("max_events_per_day", "heute dürfen keine Ereignisse mehr veröffentlicht werden"),
        ("max_webhooks", "es dürfen keine Webhooks mehr angelegt werden"),
    ],
    thousands: '.',
    webhook: "Webhook",
    description: "Beschreibung",
    tenant: "Mandant",
    reason: "Grund",
    details: "Einzelheiten",
    event_type: "Ereignisart der letzten",
    delivery: "Zustellung, die letzte",
    when: "Wann",
    how_often: "Wie oft",
    first: "Zuerst",
    last: "Zuletzt",
    until: "Wieder versucht um",
    what_to_do: "Was zu tun ist",
    open: "In der Übersicht öffnen",
    why_you: "Sie bekommen dies, weil {address} über {tenant} unterrichtet werden soll. Ein Programm hat es verschickt; Antworten werden nicht gelesen.",
    unsubscribe: "Keine Nachrichten mehr über {kind}",
    ask: "Um keine Nachrichten mehr über {kind} zu bekommen, bitten Sie die Betreuer von {tenant}, sie stummzuschalten.",
    page: UnsubscribePageTexts {
        title: "Keine Nachrichten mehr?",
        question: "Soll {address} von {tenant} keine Nachrichten mehr über {kind} bekommen? Nachrichten über anderes kommen weiterhin.",
        button: "Keine Nachrichten mehr darüber",
        done_title: "Erledigt",
        done: "{address} bekommt von {tenant} keine Nachrichten mehr über {kind}.",
        back: "Nur Sie können sie wieder einschalten: mit dem Knopf unten oder später mit dem Verweis in einer dieser Nachrichten.",
        undo: "Diese Nachrichten wieder einschalten",
        undone_title: "Wieder eingeschaltet",
        undone: "{address} bekommt von {tenant} wieder Nachrichten über {kind}.",
        bad_title: "Dieser Verweis funktioniert nicht",
        bad: "Vielleicht ist er abgeschnitten, oder die Anlage hat seither neue Schlüssel bekommen. Bitten Sie die Betreuer Ihrer Webhooks, die Nachrichten stummzuschalten, oder nehmen Sie den Verweis aus einer neueren.",
    },
    confirm: ConfirmWords {
        subject: "Bestätigen Sie diese Adresse für Nachrichten von {host}",
        requested: "Das Konto {tenant} bei {host} möchte Nachrichten über seine Webhooks an diese Adresse senden.",
        about: "Bei {host} läuft Redrive. Es stellt Webhooks zu (Nachrichten von einem Programm an ein anderes) und schreibt ihren Betreuern, wenn Zustellungen scheitern.",
        what_to_do: "Wenn Sie diese E-Mails bekommen möchten, öffnen Sie den Verweis und drücken Sie auf der Seite den Knopf. Der Verweis gilt {days} Tage.",
        open: "Diese Adresse bestätigen",
        ignore: "Wenn Sie diese E-Mail nicht erwartet haben, tun Sie nichts: Ohne Ihre Bestätigung werden keine Nachrichten gesendet.",
        title: "Diese Adresse bestätigen?",
        question: "Soll {address} Nachrichten über die Webhooks von {tenant} bekommen?",
        button: "Bestätigen",
        done_title: "Bestätigt",
        done: "{address} bekommt Nachrichten über die Webhooks von {tenant}.",
        back: "In jeder Nachricht steht ein Verweis, mit dem sie enden.",
        bad_title: "Dieser Verweis gilt nicht",
        bad: "Vielleicht ist er unvollständig, oder er ist abgelaufen. Bitten Sie die Betreiber der Webhooks um eine neue E-Mail zur Bestätigung.",
    },
};
